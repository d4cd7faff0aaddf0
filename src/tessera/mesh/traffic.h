#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "tessera/mesh/axes.h"

namespace tessera {

struct Mesh;

// What a collective moves. State: slices of parameters, gradients and optimizer state. Scalar:
// losses and the exact sums of the gradient norm, whose size does not depend on the model. Tensor:
// all else (activations and their gradients).
enum class TrafficClass : std::uint8_t { kState, kTensor, kScalar };

inline constexpr std::array kTrafficClasses = {
    TrafficClass::kState, TrafficClass::kTensor, TrafficClass::kScalar};

inline constexpr std::size_t kNumTrafficClasses = kTrafficClasses.size();

std::string_view name(TrafficClass traffic_class);

// Bytes that one rank sends, by class.
using ClassBytes = std::array<std::int64_t, kNumTrafficClasses>;

// By mesh axis, or by level of the cluster. A collective over n ranks counts as if it sent n - 1
// parts of equal size: parts that a tensor's end cuts short count whole.
using Traffic = std::map<std::string, ClassBytes, std::less<>>;

// `traffic` += `times` * `more`.
void add(Traffic& traffic, const Traffic& more, std::int64_t times = 1);

// What was sent along axes as what was sent on the levels that they lie in.
// Errors: kInvalidArgument for an axis that the mesh lacks.
Traffic by_level(const Traffic& by_axis, const Mesh& mesh);

// What a rank sends to gather or to reduce slices of `slice_bytes` over `axes`, and to all-reduce
// `count` elements.
Traffic slices_traffic(const AxisSizes& axes, TrafficClass traffic_class, std::int64_t slice_bytes);
Traffic all_reduce_traffic(const AxisSizes& axes,
                           TrafficClass traffic_class,
                           std::int64_t count,
                           std::int64_t element_bytes);

// The elements that each of `num_ranks` ranks folds in an all-reduce of `count`: whole cache lines
// of f32.
std::int64_t all_reduce_stride(std::int64_t count, std::int64_t num_ranks);

}  // namespace tessera
