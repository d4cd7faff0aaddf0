#include "tessera/program/living_memory.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// A key, and which one it is of all.
struct Numbered {
  std::uint64_t key = 0;
  std::uint32_t number = 0;
};

// Sorts by key, and where that is the same by number, with one digit after the other, the lowest
// first. No key is larger than `largest`; they come by number.
void sort_by_key(std::vector<Numbered>& keys, std::uint64_t largest) {
  constexpr int kMaxWidth = 11;  // of a digit, in bits
  const auto bits = static_cast<int>(std::bit_width(largest));
  const int num_digits = (bits + kMaxWidth - 1) / kMaxWidth;
  const int width = num_digits > 0 ? (bits + num_digits - 1) / num_digits : 0;
  const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
  std::vector<Numbered> sorted(keys.size());
  std::vector<std::uint32_t> next(mask + 1);  // by digit, where its next key goes
  for (int shift = 0; shift < bits; shift += width) {
    std::ranges::fill(next, 0);
    for (const Numbered& each : keys) {
      ++next[each.key >> shift & mask];
    }
    std::exclusive_scan(next.begin(), next.end(), next.begin(), std::uint32_t{0});
    for (const Numbered& each : keys) {
      sorted[next[each.key >> shift & mask]++] = each;
    }
    keys.swap(sorted);
  }
}

}  // namespace

LivingMemory::LivingMemory(const Program& program, const SlotNumbers& numbers)
    : program_(program),
      numbers_(numbers),
      place_of_(numbers.size()),
      places_(numbers.size()),
      alive_(numbers.size()) {
  constexpr std::uint64_t kUnit = kArenaAlignment;
  std::vector<Numbered> offsets(numbers.size());  // in units
  std::vector<std::int64_t> bytes(numbers.size());
  std::uint32_t number = 0;
  for (const Buffer& buffer : program.buffers) {
    const std::int64_t padded = buffer.padded_bytes();
    const std::int64_t begin = program.begin_of(buffer.space);
    for (const std::int64_t offset : buffer.offsets) {
      offsets[number] = {.key = static_cast<std::uint64_t>(begin + offset) / kUnit,
                         .number = number};
      bytes[number++] = padded;
    }
  }
  const std::int64_t end = program.begin_of(Space::kFile) + program.file_bytes;
  sort_by_key(offsets, static_cast<std::uint64_t>(end) / kUnit);
  for (std::size_t place = 0; place < offsets.size(); ++place) {
    const auto [key, of] = offsets[place];
    const auto begin = static_cast<std::int64_t>(key * kUnit);
    places_[place] = {.begin = begin, .end = begin + bytes[of]};
    place_of_[of] = static_cast<std::uint32_t>(place);
  }
}

void LivingMemory::begin(std::size_t number) {
  const std::size_t place = place_of_[number];
  if (places_[place].begin == places_[place].end) {
    return;
  }
  alive_.insert(place);
  if (const auto lower = alive_.before(place)) {
    check_apart(*lower, place);
  }
  if (const auto upper = alive_.after(place)) {
    check_apart(place, *upper);
  }
}

// What holds no bytes is not among them.
void LivingMemory::end(std::size_t number) {
  alive_.erase(place_of_[number]);
}

void LivingMemory::check_apart(std::size_t lower, std::size_t upper) const {
  TESSERA_CHECK(places_[lower].end <= places_[upper].begin,
                "buffers {} and {} are alive at one time and overlap",
                text(lower),
                text(upper));
}

std::string LivingMemory::text(std::size_t place) const {
  const auto number = std::ranges::find(place_of_, place);
  return to_string(program_, numbers_.of(static_cast<std::size_t>(number - place_of_.begin())));
}

}  // namespace tessera
