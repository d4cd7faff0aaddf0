#include "tessera/cost/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "tessera/base/format.h"
#include "tessera/cost/constants.h"

namespace tessera {
namespace {

template <class Point, class Predict>
FitErrors errors(std::span<const Point> points, const Predict& predict) {
  FitErrors found;
  const auto count = static_cast<double>(points.size());
  for (const Point& point : points) {
    const double error = std::abs(predict(point) / point.seconds - 1.0);
    found.mean += error / count;
    found.mean_square += error * error / count;
    found.largest = std::max(found.largest, error);
  }
  return found;
}

bool is_allowed(const Constant& constant) {
  return *constant.value >= constant.least && *constant.value <= constant.most;
}

}  // namespace

FitErrors errors_of(const DeviceCurve& curve, std::span<const MeasuredWorks> points) {
  return errors(points, [&](const MeasuredWorks& point) {
    DeviceSpec device = *point.device;
    device.curve = curve;
    return DeviceTime(device, device.name).seconds(point.works, point.cached);
  });
}

FitErrors errors_of(const Level& level, std::span<const MeasuredLeg> points) {
  return errors(points, [&](const MeasuredLeg& point) {
    const LegTime time = leg_time(level, point.work, point.style);
    return time.latency + time.moving;
  });
}

void descend(std::span<const Constant> constants, const std::function<double()>& error) {
  double least = error();
  // Whether it gets better with these factors, one for each constant of the pair.
  const auto move = [&](const Constant& a, double of_a, const Constant& b, double of_b) {
    const double a_before = *a.value;
    const double b_before = *b.value;
    *a.value *= of_a;
    *b.value *= of_b;
    if (is_allowed(a) && is_allowed(b)) {
      const double now = error();
      if (now < least) {
        least = now;
        return true;
      }
    }
    *b.value = b_before;
    *a.value = a_before;
    return false;
  };
  const auto move_each = [&](double factor) {
    bool moved = false;
    for (std::size_t i = 0; i < constants.size(); ++i) {
      const Constant& a = constants[i];
      moved = move(a, factor, a, 1.0) || move(a, 1.0 / factor, a, 1.0) || moved;
      // One may make up for what another loses.
      for (const Constant& b : constants.subspan(i + 1)) {
        moved = move(a, factor, b, factor) || move(a, 1.0 / factor, b, 1.0 / factor) ||
                move(a, factor, b, 1.0 / factor) || move(a, 1.0 / factor, b, factor) || moved;
      }
    }
    return moved;
  };
  for (const double factor : kFitFactors) {
    while (move_each(factor)) {
    }
  }
  for (const Constant& constant : constants) {
    *constant.value = std::stod(format("{:.3g}", *constant.value));
  }
}

}  // namespace tessera
