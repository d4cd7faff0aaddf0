#include "tessera/program/living_memory.h"

#include <iterator>

#include "tessera/base/error.h"

namespace tessera {

LivingMemory::Key LivingMemory::key(const BufferSlot& of) const {
  return {program_[of.buffer].offsets[static_cast<std::size_t>(of.slot)], of};
}

void LivingMemory::begin(const BufferSlot& of) {
  if (program_[of.buffer].bytes == 0) {
    return;
  }
  const auto place = alive_.insert(key(of)).first;
  if (place != alive_.begin()) {
    check_apart(*std::prev(place), *place);
  }
  if (std::next(place) != alive_.end()) {
    check_apart(*place, *std::next(place));
  }
}

void LivingMemory::end(const BufferSlot& of) {
  alive_.erase(key(of));
}

void LivingMemory::check_apart(const Key& lower, const Key& upper) const {
  TESSERA_CHECK(lower.first + program_[lower.second.buffer].padded_bytes() <= upper.first,
                "buffers {} and {} are alive at one time and overlap",
                to_string(program_, lower.second),
                to_string(program_, upper.second));
}

}  // namespace tessera
