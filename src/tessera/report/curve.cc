#include "tessera/report/curve.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera {
namespace {

constexpr std::size_t kMaxMarks = 200;  // of steps that were not finite

void add_stretch(std::span<const CurvePoint> stretch, Curve& curve) {
  const auto [low, high] = std::ranges::minmax_element(stretch, {}, &CurvePoint::value);
  double sum = 0.0;
  for (const CurvePoint& point : stretch) {
    sum += point.value;
  }
  curve.means.push_back({.step = stretch[stretch.size() / 2].step,
                         .value = sum / static_cast<double>(stretch.size())});
  curve.points.push_back(low < high ? *low : *high);
  if (low != high) {
    curve.points.push_back(low < high ? *high : *low);
  }
}

// Every so many of them, and the last.
std::vector<std::int64_t> thin(const std::vector<std::int64_t>& steps) {
  if (steps.size() <= kMaxMarks) {
    return steps;
  }
  std::vector<std::int64_t> kept;
  for (std::size_t i = 0; i < kMaxMarks; ++i) {
    kept.push_back(steps[i * (steps.size() - 1) / (kMaxMarks - 1)]);
  }
  return kept;
}

}  // namespace

Curve make_curve(std::span<const std::int64_t> steps,
                 std::span<const double> values,
                 std::size_t stretches) {
  Curve curve;
  std::vector<CurvePoint> finite;
  std::vector<std::int64_t> not_finite;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (std::isfinite(values[i])) {
      finite.push_back({.step = steps[i], .value = values[i]});
    } else {
      not_finite.push_back(steps[i]);
    }
  }
  curve.num_not_finite = static_cast<std::int64_t>(not_finite.size());
  curve.not_finite = thin(not_finite);
  if (finite.size() <= 2 * stretches) {
    curve.points = std::move(finite);
    return curve;
  }
  const std::span<const CurvePoint> all = finite;
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t begin = i * all.size() / stretches;
    const std::size_t end = (i + 1) * all.size() / stretches;
    add_stretch(all.subspan(begin, end - begin), curve);
  }
  if (curve.points.front() != all.front()) {
    curve.points.insert(curve.points.begin(), all.front());
  }
  if (curve.points.back() != all.back()) {
    curve.points.push_back(all.back());
  }
  return curve;
}

}  // namespace tessera
