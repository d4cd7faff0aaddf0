#pragma once

#include <cstdint>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/batch_sampler.h"
#include "tessera/data/sequence_source.h"
#include "tessera/runtime/executor.h"

namespace tessera {

// `count` of the numbers from 0 to total - 1, evenly spread, rising; all of them for a count of 0,
// or one above `total`.
std::vector<std::int64_t> evenly_spread(std::int64_t total, std::int64_t count);

// The loss of a rank's weights on the sequences that [validation] names: the same ones in the same
// order each time, whatever the ranks and the training batch.
class Validator {
 public:
  // `executor` runs compile_run()'s validation program, whose batches have share.rows sequences on
  // each of share.num_data ranks. Borrows both.
  Validator(Executor& executor,
            const SequenceSource& source,
            const ValidationSection& validation,
            const BatchShare& share);

  // The mean over all labels that count, summed over batches in f64; every rank of the run calls it
  // at the same time and gets the same. 0 where no label counts. Errors: what kernels throw.
  double loss();

 private:
  void load(std::int64_t first);

  Executor& executor_;
  const SequenceSource& source_;
  BatchShare share_;
  std::vector<std::int64_t> sequences_;
  std::int64_t num_labels_ = 0;  // that count
};

}  // namespace tessera
