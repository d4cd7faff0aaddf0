#include "tessera/comm/mover.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tessera/comm/fold.h"
#include "tessera/comm/quantize.h"

namespace tessera {

void HostMover::copy(const std::byte* from, std::span<std::byte> to) const {
  if (from != to.data() && !to.empty()) {
    std::memcpy(to.data(), from, to.size());
  }
}

void HostMover::copy_rows(const std::byte* from,
                          std::int64_t from_pitch,
                          std::byte* to,
                          std::int64_t to_pitch,
                          std::int64_t bytes,
                          std::int64_t count) const {
  for (std::int64_t row = 0; row < count; ++row) {
    copy(from + row * from_pitch, {to + row * to_pitch, static_cast<std::size_t>(bytes)});
  }
}

void HostMover::zero(std::span<std::byte> to) const {
  std::ranges::fill(to, std::byte{0});
}

void HostMover::fold(Fold fold,
                     std::span<const std::byte* const> sources,
                     const Elements& out,
                     std::span<std::byte* const> copies) const {
  fold_in_order(fold, sources, out, copies);
}

void HostMover::encode(const ConstElements& from,
                       std::int64_t padded,
                       const Encoding& encoding,
                       std::byte* to) const {
  tessera::encode(from, padded, encoding, to, team_);
}

void HostMover::decode_sum(std::span<const std::byte* const> parts,
                           const Encoding& encoding,
                           const Elements& to) const {
  tessera::decode_sum(parts, encoding, to, team_);
}

const Mover& host_mover() {
  static ThreadTeam caller(1);
  static const HostMover kMover(caller);
  return kMover;
}

}  // namespace tessera
