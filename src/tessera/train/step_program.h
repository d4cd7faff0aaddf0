#pragma once

#include <cstdint>

#include "tessera/config/run_config.h"
#include "tessera/ir/graph.h"
#include "tessera/models/model.h"
#include "tessera/passes/lower.h"
#include "tessera/program/program.h"

namespace tessera {

// The forward graph of one microbatch: inputs tokens, positions, documents and labels (batch, seq)
// i32, scalar seed (1 / valid tokens of the global step), output "loss" (sum over valid tokens).
Graph training_graph(const ModelDescription& model,
                     std::int64_t batch,
                     std::int64_t sequence_length,
                     DType dtype);

// The forward graph for sampling: inputs as above without labels, and `last` (batch) i32, the place
// in each sequence whose logits (batch, 1, vocab) f32 are the output.
Graph generation_graph(const ModelDescription& model,
                       std::int64_t sequence_length,
                       DType dtype,
                       std::int64_t batch = 1);

// That graph for the microbatches of `config`, of all data ranks.
Graph step_graph(const RunConfig& config, const ModelDescription& model);

// The program of each rank's part of `config`'s training step.
Program compile_step(const RunConfig& config,
                     const ModelDescription& model,
                     const WorkspaceQuery& workspace_bytes);

}  // namespace tessera
