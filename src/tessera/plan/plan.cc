#include "tessera/plan/plan.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/plan/graphs.h"

namespace tessera {

void require_layers(std::span<const std::int64_t> layers,
                    std::int64_t stages,
                    std::int64_t num_layers) {
  TESSERA_REQUIRE(std::ssize(layers) == stages,
                  ErrorCode::kInvalidConfig,
                  "found {}, expected {}: one per stage of all pipeline ranks",
                  format_plural(std::ssize(layers), "number"),
                  stages);
  const std::int64_t sum = std::accumulate(layers.begin(), layers.end(), std::int64_t{0});
  TESSERA_REQUIRE(sum == num_layers,
                  ErrorCode::kInvalidConfig,
                  "found {} in all, the model has {}",
                  format_plural(sum, "layer"),
                  num_layers);
}

void require_slice_lengths(const PipelinePlan& pipeline, std::int64_t sequence_length) {
  const std::vector<std::int64_t>& lengths = pipeline.slice_lengths;
  const std::int64_t expected = pipeline.table.slices == 1 ? 0 : pipeline.table.slices;
  TESSERA_REQUIRE(std::ssize(lengths) == expected,
                  ErrorCode::kInvalidConfig,
                  "found lengths of {}, expected those of {}, as many as the table has",
                  format_plural(std::ssize(lengths), "slice"),
                  expected);
  const std::int64_t sum = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  TESSERA_REQUIRE(lengths.empty() || (sum == sequence_length && std::ranges::min(lengths) > 0),
                  ErrorCode::kInvalidConfig,
                  "found slices of {} in all, expected those of a sequence, {}, and none empty",
                  format_plural(sum, "token"),
                  sequence_length);
}

Graph step_graph(const Plan& plan) {
  return training_graph(plan.model, plan.batch(), plan.sequence_length, plan.dtype);
}

}  // namespace tessera
