#pragma once

#include <cstdint>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/resolve/explanation.h"

namespace tessera {

// Minutes after which a run saves where no checkpoint was made meanwhile; 0: never by time.
double minutes_between_checkpoints(const CheckpointSection& checkpoint);

// What training on many tokens takes.
struct WholeTraining {
  double seconds = 0.0;  // without a stop
  double device_hours = 0.0;
  double usd = 0.0;                    // 0: not known
  std::int64_t checkpoint_bytes = 0;   // of one, of all ranks
  std::int64_t num_checkpoints = 0;    // the one at the end among them
  double seconds_of_checkpoint = 0.0;  // to write it; 0: not known
  bool saves_in_background = false;    // beside the training
};

// Of the run of `facts`, at so many tokens a second, on devices as those of `cluster`.
WholeTraining whole_training(const Explanation& facts,
                             const Cluster& cluster,
                             double tokens,
                             double tokens_per_second);

}  // namespace tessera
