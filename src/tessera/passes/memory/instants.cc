#include "tessera/passes/memory/instants.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "tessera/base/random.h"

namespace tessera {
namespace {

// Stands for a set of buffers: of two sets it is the same with a chance of 2^-128.
using Fingerprint = std::array<std::uint32_t, 4>;

struct OfFingerprint {
  std::size_t operator()(const Fingerprint& set) const {
    return static_cast<std::size_t>(set[0]) << 32 | set[1];
  }
};

// Adds the buffer where it is not in the set, and removes it where it is.
void toggle(Fingerprint& set, const BufferSlot& slot) {
  constexpr std::uint64_t kKey = 0;
  const Fingerprint one = philox(
      kKey,
      {static_cast<std::uint32_t>(slot.buffer.index), static_cast<std::uint32_t>(slot.slot), 0, 0});
  for (std::size_t i = 0; i < set.size(); ++i) {
    set[i] ^= one[i];
  }
}

}  // namespace

Instants::Instants(const Program& program)
    : numbers_(program), lives_(numbers_.size()), first_(numbers_.size()) {
  std::vector<bool> has_lived(numbers_.size(), false);
  std::vector<std::size_t> begins(numbers_.size());  // by number, of what lives
  std::unordered_set<Fingerprint, OfFingerprint> seen;
  Fingerprint alive = {};
  std::optional<Instant> last_begin;  // at which more may begin
  const auto number_last = [&](const Instant* now) {
    if (last_begin && (now == nullptr || *last_begin != *now)) {
      size_ += seen.insert(alive).second ? 1 : 0;
      last_begin.reset();
    }
  };
  const auto close = [&](std::size_t number) {
    if (begins[number] < size_) {
      lives_[number].push_back({.begin = begins[number], .end = size_});
    }
  };
  for_each_life_event(program, [&](const LifeEvent& event) {
    const std::size_t number = numbers_[event.of];
    number_last(event.is_end ? nullptr : &event.at);
    if (event.is_end) {
      close(number);
    } else {
      begins[number] = size_;
      if (!has_lived[number]) {
        has_lived[number] = true;
        first_[number] = event.at;
      }
      last_begin = event.at;
    }
    toggle(alive, event.of);
  });
  number_last(nullptr);
}

}  // namespace tessera
