#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct CurvePoint {
  std::int64_t step = 0;
  double value = 0.0;

  friend bool operator==(const CurvePoint&, const CurvePoint&) = default;
};

// A curve with as many points as a screen can show.
struct Curve {
  std::vector<CurvePoint> points;        // finite ones, of real steps, by step
  std::vector<CurvePoint> means;         // of each stretch; empty where points are all there is
  std::vector<std::int64_t> not_finite;  // some of these steps, the first and the last among them
  std::int64_t num_not_finite = 0;
};

// Thins a curve of any length (NaN or infinite: the step was not finite) to at most 2 points for
// each of `stretches` of equally many steps, and the first and the last: the lowest and the highest
// of a stretch stay, so that no spike is lost. Shorter curves stay whole.
Curve make_curve(std::span<const std::int64_t> steps,
                 std::span<const double> values,
                 std::size_t stretches);

}  // namespace tessera
