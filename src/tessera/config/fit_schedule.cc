#include "tessera/config/fit_schedule.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/optim/schedule.h"

namespace tessera {
namespace {

// A line of all ranks that a launcher started.
void warn_once(const std::string& message) {
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  if (!launch || launch->rank == 0) {
    log_warning(message);
  }
}

}  // namespace

std::int64_t usual_warmup(const Schedule& schedule, std::int64_t num_steps) {
  return std::min(Schedule{}.warmup, num_steps - num_decay_steps(schedule, num_steps));
}

double usual_decay_ratio(const Schedule& schedule, std::int64_t num_steps) {
  const std::int64_t left = num_steps - std::min(schedule.warmup, num_steps);
  return std::min(Schedule{}.decay_ratio,
                  static_cast<double>(left) / static_cast<double>(num_steps));
}

void fit_usual_warmup(RunConfig& config) {
  if (config.origins.file.empty() && !config.origins.places.contains("schedule.warmup") &&
      config.schedule.warmup == Schedule().warmup) {
    config.schedule.warmup = usual_warmup(config.schedule, config.train.steps);
  }
}

void fit_schedule(RunConfig& config) {
  const auto is_named = [&](std::string_view key) { return config.origins.places.contains(key); };
  Schedule& schedule = config.schedule;
  const std::int64_t steps = config.train.steps;
  if (!is_named("schedule.warmup")) {
    schedule.warmup = usual_warmup(schedule, steps);
    return;
  }
  if (!is_named("schedule.decay_ratio") && schedule.warmup <= steps) {
    schedule.decay_ratio = usual_decay_ratio(schedule, steps);
    return;
  }
  const std::int64_t left = steps - num_decay_steps(schedule, steps);
  const std::string place = placed(config, "schedule.warmup");
  if (schedule.warmup > left && !place.starts_with("--")) {
    warn_once(
        format("{}: found {}, and {} is taken: a run of train.steps = {} has no more steps "
               "beside its decay",
               place,
               schedule.warmup,
               left,
               steps));
    schedule.warmup = left;
  }
}

}  // namespace tessera
