#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/batch_sampler.h"
#include "tessera/data/sequence_source.h"
#include "tessera/runtime/loss_executor.h"

namespace tessera {

// `count` of the numbers from 0 to total - 1, evenly spread, rising; all of them for a count of 0,
// or one above `total`.
std::vector<std::int64_t> evenly_spread(std::int64_t total, std::int64_t count);

// The loss of a rank's weights on the sequences that [validation] names: the same ones in the same
// order each time, whatever the ranks and the training batch.
class Validator {
 public:
  // `executor` runs the rank's validation program, each of whose microbatches is a batch of
  // share.rows sequences on each of share.num_data ranks. Borrows it and the source.
  Validator(LossExecutor& executor,
            const SequenceSource& source,
            const ValidationSection& validation,
            const BatchShare& share);

  // Called between two runs of the program with how many sequences are done, of how many; false:
  // stop.
  using GoOn = std::function<bool(std::int64_t done, std::int64_t total)>;

  // The mean over all labels that count, summed over batches in f64; nothing where `go_on` said to
  // stop. Every rank of the run calls it at the same time and gets the same; `go_on` must say the
  // same to all. 0 where no label counts. Errors: what kernels throw.
  std::optional<double> loss(const GoOn& go_on);

 private:
  void load(std::int64_t first, std::int64_t microbatch);

  LossExecutor& executor_;
  const SequenceSource& source_;
  BatchShare share_;
  std::vector<std::int64_t> sequences_;
  std::int64_t num_labels_ = 0;  // that count
};

}  // namespace tessera
