#pragma once

#include <functional>
#include <span>

#include "tessera/cost/collective_time.h"
#include "tessera/cost/device_time.h"
#include "tessera/mesh/device_spec.h"
#include "tessera/ops/work.h"

namespace tessera {

// What a device was measured to take for the kernels of an op.
struct MeasuredWorks {
  const DeviceSpec* device = nullptr;  // its figures; borrowed
  Works works;
  double seconds = 0.0;
  double cached = 0.0;  // share of the bytes
};

// What a leg of a collective was measured to take.
struct MeasuredLeg {
  LegWork work;
  CollectiveStyle style = CollectiveStyle::kOwn;
  double seconds = 0.0;
};

// Of predicted times over measured ones.
struct FitErrors {
  double mean = 0.0;         // of how far they are from 1
  double largest = 0.0;      // likewise
  double mean_square = 0.0;  // likewise

  friend bool operator==(const FitErrors&, const FitErrors&) = default;
};

// Of all devices with this curve in place of their own. Errors: those of DeviceTime.
FitErrors errors_of(const DeviceCurve& curve, std::span<const MeasuredWorks> points);
FitErrors errors_of(const Level& level, std::span<const MeasuredLeg> points);

// A constant that is fitted, and what it may be.
struct Constant {
  double* value = nullptr;
  double most = 1.0;
  double least = 0.0;
};

// Moves each constant, which is not 0, and each two of them, up and down by ever smaller factors as
// long as error() falls, which depends on them. Then it rounds them to three digits.
void descend(std::span<const Constant> constants, const std::function<double()>& error);

}  // namespace tessera
