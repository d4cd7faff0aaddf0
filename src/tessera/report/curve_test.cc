#include "tessera/report/curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<std::int64_t> count_to(std::size_t size) {
  std::vector<std::int64_t> steps(size);
  std::iota(steps.begin(), steps.end(), std::int64_t{1});
  return steps;
}

TEST(Curve, AShortOneIsWhole) {
  const std::vector<double> values = {3.0, kNaN, 1.0, 2.0};
  const Curve curve = make_curve(count_to(4), values, 2);
  EXPECT_THAT(curve.points,
              ElementsAre(CurvePoint{1, 3.0}, CurvePoint{3, 1.0}, CurvePoint{4, 2.0}));
  EXPECT_THAT(curve.means, IsEmpty());
  EXPECT_THAT(curve.not_finite, ElementsAre(2));
  EXPECT_EQ(curve.num_not_finite, 1);
}

TEST(Curve, NothingAndNothingFinite) {
  EXPECT_THAT(make_curve({}, {}, 10).points, IsEmpty());
  const std::vector<double> values = {kNaN, std::numeric_limits<double>::infinity()};
  const Curve curve = make_curve(count_to(2), values, 10);
  EXPECT_THAT(curve.points, IsEmpty());
  EXPECT_THAT(curve.not_finite, ElementsAre(1, 2));
}

TEST(Curve, KeepsBothExtremesOfAStretch) {
  const std::vector<double> values = {5.0, 9.0, 1.0, 5.0, 2.0, 2.0, 8.0, 4.0};
  const Curve curve = make_curve(count_to(8), values, 2);
  EXPECT_THAT(curve.points,
              ElementsAre(CurvePoint{1, 5.0},
                          CurvePoint{2, 9.0},
                          CurvePoint{3, 1.0},
                          CurvePoint{5, 2.0},
                          CurvePoint{7, 8.0},
                          CurvePoint{8, 4.0}));
  EXPECT_THAT(curve.means, ElementsAre(CurvePoint{3, 5.0}, CurvePoint{7, 4.0}));
}

TEST(Curve, AMillionStepsKeepEverySpike) {
  constexpr std::size_t kSteps = 1'000'000;
  constexpr std::size_t kStretches = 1000;
  std::vector<double> values(kSteps);
  for (std::size_t i = 0; i < kSteps; ++i) {
    values[i] = 2.0 + std::sin(static_cast<double>(i) * 0.001);
  }
  // No two in one stretch.
  for (std::size_t i = 777; i < kSteps; i += 12'345) {
    values[i] = i % 2 == 0 ? 100.0 : -100.0;
  }
  const std::vector<std::int64_t> steps = count_to(kSteps);
  const Curve curve = make_curve(steps, values, kStretches);
  EXPECT_LE(curve.points.size(), 2 * kStretches + 2);
  EXPECT_TRUE(std::ranges::is_sorted(curve.points, {}, &CurvePoint::step));
  EXPECT_EQ(curve.points.front().step, 1);
  EXPECT_EQ(curve.points.back().step, static_cast<std::int64_t>(kSteps));
  for (const CurvePoint& point : curve.points) {
    ASSERT_EQ(values[static_cast<std::size_t>(point.step - 1)], point.value) << "a real step";
  }
  const auto spikes = [](const CurvePoint& point) { return std::abs(point.value) == 100.0; };
  EXPECT_EQ(std::ranges::count_if(curve.points, spikes), (kSteps - 777 + 12'344) / 12'345);
}

TEST(Curve, MarksOfManyLostStepsAreThinned) {
  const std::vector<double> values(5000, kNaN);
  const Curve curve = make_curve(count_to(5000), values, 100);
  EXPECT_EQ(curve.num_not_finite, 5000);
  EXPECT_EQ(curve.not_finite.size(), 200U);
  EXPECT_EQ(curve.not_finite.front(), 1);
  EXPECT_EQ(curve.not_finite.back(), 5000);
}

}  // namespace
}  // namespace tessera
