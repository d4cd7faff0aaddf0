#include "tessera/plan/plan.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/plan/graphs.h"

namespace tessera {

void require_layers(const PipelinePlan& pipeline, std::int64_t num_layers) {
  const std::vector<std::int64_t>& layers = pipeline.layers;
  TESSERA_REQUIRE(std::ssize(layers) == pipeline.table.stages,
                  ErrorCode::kInvalidConfig,
                  "found {}, expected {}: one per stage",
                  format_plural(std::ssize(layers), "number"),
                  pipeline.table.stages);
  const std::int64_t sum = std::accumulate(layers.begin(), layers.end(), std::int64_t{0});
  TESSERA_REQUIRE(sum == num_layers,
                  ErrorCode::kInvalidConfig,
                  "found {} in all, the model has {}",
                  format_plural(sum, "layer"),
                  num_layers);
}

Graph step_graph(const Plan& plan) {
  return training_graph(plan.model, plan.batch(), plan.sequence_length, plan.dtype);
}

}  // namespace tessera
