#include "tessera/actions/split_tokens.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::int64_t kMostPerBegin = 64;
constexpr std::int64_t kLeastBegins = 16;  // in a slice

std::int64_t begins_at_multiples_of(std::int64_t units, std::int64_t slices) {
  std::int64_t multiple = 1;
  while (multiple < kMostPerBegin && 2 * multiple * kLeastBegins * slices <= units) {
    multiple *= 2;
  }
  return multiple;
}

// How many of the first tokens, in parts of all, cost `share` of all: x + growth / 2 x^2 is
// share (1 + growth / 2).
double part_that_costs(double share, double growth) {
  const double cost = share * (1.0 + growth / 2.0);
  return 2.0 * cost / (1.0 + std::sqrt(1.0 + 2.0 * growth * cost));
}

}  // namespace

std::vector<std::int64_t> split_tokens(std::int64_t tokens,
                                       std::int64_t slices,
                                       double growth,
                                       std::int64_t unit) {
  TESSERA_REQUIRE(unit >= 1 && tokens % unit == 0,
                  ErrorCode::kInvalidArgument,
                  "slices of {} tokens in multiples of {}, which do not divide them",
                  tokens,
                  unit);
  TESSERA_REQUIRE(slices >= 1 && slices <= tokens / unit,
                  ErrorCode::kInvalidArgument,
                  "{} slices of {} tokens, expected 1 to {}",
                  slices,
                  tokens,
                  tokens / unit);
  TESSERA_REQUIRE(growth >= 0 && std::isfinite(growth),
                  ErrorCode::kInvalidArgument,
                  "costs of tokens that grow by {}, expected 0 or more",
                  growth);
  const std::int64_t multiple = unit * begins_at_multiples_of(tokens / unit, slices);
  std::vector<std::int64_t> lengths;
  std::int64_t begin = 0;
  for (std::int64_t slice = 1; slice <= slices; ++slice) {
    std::int64_t end = tokens;
    if (slice < slices) {
      const double share = static_cast<double>(slice) / static_cast<double>(slices);
      const double exact = part_that_costs(share, growth) * static_cast<double>(tokens);
      end = multiple * std::llround(exact / static_cast<double>(multiple));
      // However steep: each slice has tokens.
      end = std::clamp(end, begin + multiple, tokens - multiple * (slices - slice));
    }
    lengths.push_back(end - begin);
    begin = end;
  }
  return lengths;
}

}  // namespace tessera
