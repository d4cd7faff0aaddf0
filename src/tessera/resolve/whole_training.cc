#include "tessera/resolve/whole_training.h"

#include <algorithm>
#include <cmath>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/plan/plan.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

constexpr double kUsualMinutes = 15.0;
constexpr double kSecondsPerMinute = 60.0;
constexpr double kSecondsPerHour = 3600.0;

std::int64_t checkpoint_bytes(const Explanation& facts) {
  std::int64_t bytes = 0;
  for (const CheckpointTensor& tensor :
       model_tensors(parameter_inits(step_graph(facts.run.plan)), facts.config.optimizer.moments)) {
    bytes += static_cast<std::int64_t>(saved_bytes(tensor));
  }
  return bytes;
}

}  // namespace

double minutes_between_checkpoints(const CheckpointSection& checkpoint) {
  return checkpoint.every_minutes.value_or(checkpoint.every == 0 ? kUsualMinutes : 0.0);
}

WholeTraining whole_training(const Explanation& facts,
                             const Cluster& cluster,
                             double tokens,
                             double tokens_per_second) {
  WholeTraining training = {.seconds = tokens / tokens_per_second,
                            .checkpoint_bytes = checkpoint_bytes(facts),
                            .saves_in_background = facts.run.saves_in_background};
  training.device_hours =
      training.seconds / kSecondsPerHour * static_cast<double>(facts.layout().mesh.num_ranks());
  training.usd = training.device_hours * cluster.device_hour_usd;
  const CheckpointSection& checkpoint = facts.config.checkpoint;
  const double minutes = minutes_between_checkpoints(checkpoint);
  const double steps = tokens / static_cast<double>(facts.tokens_per_step());
  double count = 0.0;
  if (checkpoint.every > 0) {
    count += steps / static_cast<double>(checkpoint.every);
  }
  if (minutes > 0.0) {
    count = std::max(count, training.seconds / kSecondsPerMinute / minutes);
  }
  // The last is of the end, which may be one of them.
  constexpr double kRounding = 1.0 - 1e-9;
  training.num_checkpoints =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(count * kRounding)));
  if (cluster.storage_bandwidth > 0.0) {
    training.seconds_of_checkpoint =
        static_cast<double>(training.checkpoint_bytes) / cluster.storage_bandwidth;
  }
  return training;
}

}  // namespace tessera
