#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/data/rotation.h"
#include "tessera/mesh/context_order.h"

namespace tessera {

struct SampledSource {
  std::int64_t num_sequences = 0;  // one epoch
  double weight = 1.0;             // its share of the run, beside the weights of the others
};

struct BatchSamplerOptions {
  std::uint64_t seed = 0;
  std::vector<SampledSource> sources;
  std::int64_t global_batch = 0;  // sequences per step, over all ranks
  bool shuffle = true;
};

// Which sequences a step trains on: a pure function of (seed, step), whatever the layout, without
// state. The sequences of all steps are numbered from 0. Of several sources, each takes its share
// of these numbers, evenly spread (Rotation): after any number of them it has had what its weight
// says, give or take a few. Its own sequence number n is in its epoch n / num_sequences, and every
// epoch visits each of its sequences once, in an order drawn from (seed, source, epoch) (in stream
// order without shuffle). A batch may span epochs.
class BatchSampler {
 public:
  // Errors: kInvalidArgument if there are no sources, num_sequences or global_batch < 1, a weight
  // is not above 0 or too small a part of all (below 1e-9).
  explicit BatchSampler(const BatchSamplerOptions& options);

  // The global_batch sequence indices of global step `step`, which counts from 1; the sequences of
  // a source are numbered behind those of the source before.
  // Errors: kInvalidArgument if step < 1.
  std::vector<std::int64_t> batch(std::int64_t step) const;

 private:
  BatchSamplerOptions options_;
  Rotation rotation_;
};

// Which sequences of each batch a rank reads.
struct BatchShare {
  std::int64_t rows = 1;      // of a microbatch on each rank
  std::int64_t num_data = 1;  // ranks that read different sequences
  std::int64_t place = 0;     // this rank's among them
  ContextPart tokens = {};    // of each sequence
};

// The share's rows of microbatch `microbatch`, which counts from 0: a microbatch is the next
// rows * num_data sequences of the batch, of which every place has its rows in turn. So
// microbatches of as many sequences are the same however many ranks there are. Errors:
// kInvalidArgument for a microbatch beyond the batch.
std::span<const std::int64_t> share_of(std::span<const std::int64_t> batch,
                                       const BatchShare& share,
                                       std::int64_t microbatch);

}  // namespace tessera
