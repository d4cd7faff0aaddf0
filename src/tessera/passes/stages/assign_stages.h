#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/ir/graph.h"

namespace tessera {

// The stage of a node that every stage does for itself.
inline constexpr std::int32_t kEveryStage = -1;

// The stage of each node of a training graph whose forward and backward are there, `layers` being
// how many of the model's layers each stage has, the first ones first; a stage may have none. What
// stands before the layers (an embedding) and what is done of it in backward is the first stage's;
// what stands after them (the head, the loss) is the last one's. What follows from states alone (a
// gathered or quantized weight) is of the stage that reads it first; what follows from inputs alone
// (positions, masks, tables of angles) is every stage's: it is computed again, never sent.
// Errors: kInvalidArgument where the graph has another number of layers.
std::vector<std::int32_t> assign_stages(const Graph& graph, std::span<const std::int64_t> layers);

}  // namespace tessera
