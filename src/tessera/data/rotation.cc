#include "tessera/data/rotation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::uint64_t kPeriod = std::uint64_t{1} << 32U;
constexpr std::uint64_t kStep = 2654435769;  // 2^32 over the golden ratio, rounded; odd
constexpr double kLeastShare = 1e-9;

// The sum of floor((a i + b) / m) over i in [0, n), by the steps of Euclid's algorithm; sums wrap.
// Precondition: m <= 2^32, n <= 2^32.
std::uint64_t floor_sum(std::uint64_t n, std::uint64_t m, std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  while (n > 0) {
    // n (n - 1) / 2 without a wrap: the even one is halved.
    sum += (n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n) * (a / m);
    a %= m;
    sum += n * (b / m);
    b %= m;
    const std::uint64_t most = a * n + b;
    n = most / m;
    b = most % m;
    std::swap(m, a);
  }
  return sum;
}

}  // namespace

Rotation::Rotation(std::span<const double> weights, std::uint64_t offset)
    : bounds_{0}, offset_(offset % kPeriod) {
  TESSERA_REQUIRE(!weights.empty(), ErrorCode::kInvalidArgument, "no weights to draw from");
  double sum = 0;
  for (const double weight : weights) {
    TESSERA_REQUIRE(std::isfinite(weight) && weight > 0,
                    ErrorCode::kInvalidArgument,
                    "a weight of {}: expected a number above 0",
                    weight);
    sum += weight;
  }
  double before = 0;
  for (const double weight : weights) {
    TESSERA_REQUIRE(weight >= kLeastShare * sum,
                    ErrorCode::kInvalidArgument,
                    "a weight of {} beside a sum of {}: expected at least a part in 10^9",
                    weight,
                    sum);
    before += weight;
    const double bound = std::round(before / sum * static_cast<double>(kPeriod));
    bounds_.push_back(static_cast<std::uint64_t>(bound));
  }
  bounds_.back() = kPeriod;
}

std::uint64_t Rotation::num_below(std::uint64_t index, std::uint64_t bound) const {
  // x mod m < c just where floor(x / m) and floor((x - c) / m) differ.
  const std::uint64_t n = index % kPeriod;
  return index / kPeriod * bound + floor_sum(n, kPeriod, kStep, offset_ + kPeriod) -
         floor_sum(n, kPeriod, kStep, offset_ + kPeriod - bound);
}

Rotation::Draw Rotation::operator()(std::int64_t index) const {
  const auto s = static_cast<std::uint64_t>(index);
  const std::uint64_t value = (s % kPeriod * kStep + offset_) % kPeriod;
  const auto after = std::ranges::upper_bound(bounds_, value);
  const auto choice = static_cast<std::size_t>(after - bounds_.begin()) - 1;
  return {.choice = choice,
          .earlier = static_cast<std::int64_t>(num_below(s, bounds_[choice + 1]) -
                                               num_below(s, bounds_[choice]))};
}

}  // namespace tessera
