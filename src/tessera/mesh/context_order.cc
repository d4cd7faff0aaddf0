#include "tessera/mesh/context_order.h"

#include <numeric>

#include "tessera/base/error.h"

namespace tessera {

std::string_view to_string(ContextKind kind) {
  switch (kind) {
    case ContextKind::kGather:
      return "gather";
    case ContextKind::kUlysses:
      return "ulysses";
    case ContextKind::kRing:
      return "ring";
  }
  return "?";
}

std::string_view to_string(ContextBalance balance) {
  switch (balance) {
    case ContextBalance::kZigzag:
      return "zigzag";
    case ContextBalance::kNone:
      return "none";
  }
  return "?";
}

std::int64_t context_unit(std::int64_t ranks, ContextBalance balance) {
  return ranks > 1 && balance == ContextBalance::kZigzag ? 2 * ranks : ranks;
}

std::int64_t sequence_unit(std::int64_t ranks, ContextBalance balance, std::int64_t tensor) {
  return ranks == 1 ? 1 : std::lcm(context_unit(ranks, balance), ranks * tensor);
}

std::vector<std::int32_t> context_order(std::int64_t length,
                                        std::int64_t ranks,
                                        ContextBalance balance) {
  const std::int64_t unit = context_unit(ranks, balance);
  TESSERA_REQUIRE(ranks >= 1 && length % unit == 0,
                  ErrorCode::kInvalidArgument,
                  "a sequence of {} tokens over {} context ranks, expected a multiple of {}",
                  length,
                  ranks,
                  unit);
  std::vector<std::int32_t> order(static_cast<std::size_t>(length));
  if (unit == ranks) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  const auto piece = static_cast<std::int32_t>(length / unit);
  auto at = order.begin();
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(ranks); ++rank) {
    for (const std::int32_t index : {rank, static_cast<std::int32_t>(unit) - 1 - rank}) {
      std::iota(at, at + piece, index * piece);
      at += piece;
    }
  }
  return order;
}

}  // namespace tessera
