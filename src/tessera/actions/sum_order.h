#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tessera/actions/action_table.h"

namespace tessera {

// The first action that adds to a sum, of gradients or of losses, after a later microbatch has;
// none where all sums are those of a run without a pipeline.
std::optional<StageAction> first_falling(const ActionTable& table);

// In which order microbatches come to each sum of a step: to the gradients of the embedding, of
// each layer and of the head, and to the losses, a line each; "" where that is the order of a run
// without a pipeline. Two tables whose texts are the same give the same bits. `layers`: of each
// stage.
std::string sum_order(const ActionTable& table, std::span<const std::int64_t> layers);

}  // namespace tessera
