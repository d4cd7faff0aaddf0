#pragma once

#include <cstdint>

#include "tessera/ir/graph.h"
#include "tessera/models/model.h"

namespace tessera {

// The forward graph of one microbatch: inputs tokens, positions, documents and labels (batch, seq)
// i32, scalar inverse_labels (1 / valid tokens of the global step), output "loss" of that kind (sum
// over valid tokens).
Graph training_graph(const ModelDescription& model,
                     std::int64_t batch,
                     std::int64_t sequence_length,
                     DType dtype);

// The forward graph for sampling: inputs as above without labels, and `last` (batch) i32, the place
// in each sequence whose logits (batch, 1, vocab) f32 are the output. `length` is ModelInputs's,
// where it is more.
Graph generation_graph(const ModelDescription& model,
                       std::int64_t sequence_length,
                       DType dtype,
                       std::int64_t batch = 1,
                       std::int64_t length = 0);

// The forward graph that says how well a model predicts: inputs and scalar as the first, and for
// each of `batch` sequences an output "loss.ROW", the sum over its labels that count, in nats.
Graph evaluation_graph(const ModelDescription& model,
                       std::int64_t batch,
                       std::int64_t sequence_length,
                       DType dtype);

}  // namespace tessera
