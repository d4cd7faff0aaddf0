#pragma once

#include <cstdint>
#include <optional>

#include "tessera/config/run_config.h"
#include "tessera/ir/graph.h"
#include "tessera/models/model.h"
#include "tessera/passes/lower.h"
#include "tessera/program/program.h"

namespace tessera {

// The forward graph of one microbatch: inputs tokens, positions, documents and labels (batch, seq)
// i32, scalar inverse_labels (1 / valid tokens of the global step), output "loss" of that kind (sum
// over valid tokens).
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

// The forward graph that says how well a model predicts: inputs and scalar as the first, and for
// each of `batch` sequences an output "loss.ROW", the sum over its labels that count, in nats.
Graph evaluation_graph(const ModelDescription& model,
                       std::int64_t batch,
                       std::int64_t sequence_length,
                       DType dtype);

// The training graph for the microbatches of `config`, of all data ranks.
Graph step_graph(const RunConfig& config, const ModelDescription& model);

// What each rank of a run executes, in one arena: the training step and, where the run validates,
// the loss of one batch of train.microbatch sequences a data rank, on the step's parameters. That
// one has inputs as the forward graph and the output "loss", the sum over the valid tokens of all
// ranks; between two steps it may run as often as is wanted, and leaves the states as they are.
struct RunPrograms {
  Program step;
  std::optional<Program> validation = {};

  std::int64_t arena_bytes() const;
};

RunPrograms compile_run(const RunConfig& config,
                        const ModelDescription& model,
                        const WorkspaceQuery& workspace_bytes);

// The program by which each data rank says how well the model predicts `rows` sequences of its own:
// evaluation_graph()'s inputs and outputs, for these alone. The ranks run it together.
Program compile_evaluation(const RunConfig& config,
                           const ModelDescription& model,
                           std::int64_t rows,
                           std::int64_t sequence_length,
                           const WorkspaceQuery& workspace_bytes);

// The program of each rank's part of `config`'s training step.
Program compile_step(const RunConfig& config,
                     const ModelDescription& model,
                     const WorkspaceQuery& workspace_bytes);

}  // namespace tessera
