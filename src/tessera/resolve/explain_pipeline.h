#pragma once

#include <cstddef>
#include <string>

#include "tessera/resolve/explanation.h"

namespace tessera {

// What `tessera explain` says of a run's pipeline, as text for people: its schedule and stages,
// what its ranks wait, what they hold, and what goes over its boundaries; "" without one.
std::string pipeline_text(const Explanation& facts);

// The schedule over time, by the cost of its stages: drawn in lines of `width` columns, as an SVG
// image, and as a table that pipeline.schedule takes. Errors: kInvalidConfig without a pipeline.
std::string schedule_text(const Explanation& facts, std::size_t width);
std::string schedule_gantt(const Explanation& facts);
std::string schedule_csv(const Explanation& facts);

}  // namespace tessera
