#include "tessera/launch/rank_control.h"

#include <cstddef>

#include "tessera/comm/texts.h"
#include "tessera/launch/rank_launch.h"

namespace tessera {

RankControl::RankControl(World& world, double patience_seconds)
    : rank_(world.rank()),
      num_ranks_(world.size()),
      patience_seconds_(patience_seconds),
      group_(control_group(world)) {}

std::vector<std::string> RankControl::from_all(const std::string& text) {
  return talk([&](Communicator& group) { return gather_texts(group, text); });
}

std::string RankControl::from_leader(const std::string& text) {
  return from_all(text)[0];
}

void RankControl::take_largest(std::span<std::int64_t> values) {
  const Elements elements = {.dtype = DType::kI64,
                             .data = reinterpret_cast<std::byte*>(values.data()),
                             .count = std::ssize(values)};
  talk([&](Communicator& group) { group.all_reduce(Fold::kMax, elements, elements); });
}

}  // namespace tessera
