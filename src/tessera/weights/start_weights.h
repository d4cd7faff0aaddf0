#pragma once

#include <cstdint>
#include <memory>

#include "tessera/config/run_config.h"
#include "tessera/state/weight_source.h"

namespace tessera {

// Which of the ranks opens them: each checks a part of a checkpoint's files.
struct WeightsReader {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
};

// The weights of model.weights for the model of `config`. Where that has more ids than they have,
// each new row of embedding and head is the mean of the rows that there are: for the head the
// prediction that is the safest before training (it takes no more from the known ids than an
// average one), and for the embedding an input like those that the layers know. Errors: as
// weights_section() and require_same_model(), and of the files.
std::unique_ptr<const WeightSource> open_start_weights(const RunConfig& config,
                                                       const WeightsReader& reader = {});

// Says, once, what the run starts from, what is odd about it, and how many ids are new.
void log_start_weights(const RunConfig& config);

}  // namespace tessera
