#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

struct BatchSamplerOptions {
  std::uint64_t seed = 0;
  std::int64_t num_sequences = 0;  // of the data: one epoch
  std::int64_t global_batch = 0;   // sequences per step, over all ranks
  bool shuffle = true;
};

// Which sequences a step trains on: a pure function of (seed, step), whatever the layout. The
// sequences of all steps are numbered from 0; number s is in epoch s / num_sequences, and every
// epoch visits each sequence once, in an order drawn from (seed, epoch) (in stream order without
// shuffle). A batch may span two epochs.
class BatchSampler {
 public:
  // Errors: kInvalidArgument if num_sequences or global_batch < 1.
  explicit BatchSampler(const BatchSamplerOptions& options);

  // The global_batch sequence indices of global step `step`, which counts from 1.
  // Errors: kInvalidArgument if step < 1.
  std::vector<std::int64_t> batch(std::int64_t step) const;

 private:
  BatchSamplerOptions options_;
};

}  // namespace tessera
