#pragma once

#include "tessera/ir/dtype.h"
#include "tessera/mesh/device_spec.h"
#include "tessera/ops/work.h"

namespace tessera {

// How long a device takes for kernels that nothing disturbs, by its figures and its curve.
class DeviceTime {
 public:
  // Errors: kInvalidConfig where the memory bandwidth is not known.
  explicit DeviceTime(const DeviceSpec& device);

  // Whether the device has no curve, so that a usual one stands in.
  bool is_estimate() const { return !device_.curve; }

  // 0 for a wire. Errors: kInvalidConfig where the peak of the products' dtype is not known.
  double seconds(const Work& work) const;
  double seconds(const Works& works) const;

  // Of the bytes alone.
  double memory_seconds(const Work& work) const;

 private:
  double peak(DType dtype) const;
  double product_seconds(const Work& work) const;
  double attention_seconds(const Work& work) const;

  DeviceSpec device_;
  DeviceCurve curve_;
};

}  // namespace tessera
