#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/actions/timeline.h"

namespace tessera {

// What the parts of a model cost per microbatch. A head whose loss computes its gradients at once
// has all of its cost in `forward`.
struct ModelCosts {
  std::vector<ActionCosts> layers;
  ActionCosts embedding = {0.0, 0.0, 0.0};  // on the first stage
  ActionCosts head = {0.0, 0.0, 0.0};       // and what else follows the layers: on the last stage
};

// By stage, of contiguous runs of layers. Errors: kInvalidArgument if the runs are not all layers.
std::vector<ActionCosts> stage_costs(const ModelCosts& model,
                                     std::span<const std::int64_t> layers_of_stage);

struct LayerSplit {
  std::vector<std::int64_t> layers_of_stage;  // 0: embedding or head alone, or nothing
  double makespan = 0.0;                      // of timeline() with the stage_costs() of these
};

// That the model has a part for each stage of a schedule, of which no table is made yet: layers,
// embedding and head. Errors: kInvalidConfig saying how many stages there can be, and what makes
// fewer.
void require_parts(std::int64_t ranks, std::int64_t chunks, std::int64_t layers);

// Layers onto the stages of a checked table such that timeline() is short: the best that is found
// by moving layers from splits whose largest stage or rank is small. Every run finds the same one.
// Errors: kInvalidConfig for more stages than layers, embedding and head; kInvalidArgument for
// costs that are negative or not finite.
LayerSplit split_layers(const ActionTable& table, const ModelCosts& model, double hop = 0.0);

}  // namespace tessera
