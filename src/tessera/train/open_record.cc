#include "tessera/train/open_record.h"

#include <cmath>
#include <filesystem>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/dataset/same_data.h"
#include "tessera/state/training_state.h"
#include "tessera/train/disk_space.h"
#include "tessera/train/session_log.h"

namespace tessera {
namespace {

bool keeps_best(const RunSetup& setup) {
  return setup.run.plan.validates && setup.config.checkpoint.keep_best;
}

// Of the steps before this start, so that the best one is known without a file of its own. Losses
// of other data, until the step `since`, say nothing of it: whether there are any.
bool note_validations(const std::filesystem::path& run_dir, std::int64_t since, RunSaves& saves) {
  bool leaves_some_out = false;
  for_each_validation(run_dir, [&](std::int64_t step, double loss) {
    if (step > since || since == 0) {
      saves.note_validation(step, loss);
    } else {
      leaves_some_out = leaves_some_out || std::isfinite(loss);
    }
  });
  saves.link_best();
  return leaves_some_out;
}

std::string validation_of(const RunSetup& setup) {
  return setup.run.plan.validates
             ? describe_validation(setup.sequences, setup.config.validation.sequences)
             : "";
}

std::int64_t alike_since(const RunSetup& setup) {
  return validated_alike_since(read_sessions(setup.config.run.dir), validation_of(setup));
}

void warn_of_full_disk(const RunSetup& setup, const RunSaves& saves) {
  const RunConfig& config = setup.config;
  std::int64_t bytes = 0;
  for (const CheckpointTensor& tensor : model_tensors(setup.parameters, config.optimizer.moments)) {
    bytes += static_cast<std::int64_t>(saved_bytes(tensor));
  }
  const std::string shortage = disk_shortage(config.run.dir,
                                             {.checkpoint_bytes = bytes,
                                              .keep = config.checkpoint.keep,
                                              .keeps_best = keeps_best(setup),
                                              .present = count_checkpoints(saves.directory())});
  if (!shortage.empty()) {
    log_warning(shortage);
  }
}

}  // namespace

void open_record(const RunSetup& setup,
                 const CheckpointMeta& meta,
                 RunSaves& saves,
                 std::unique_ptr<RunRecord>& record) {
  const RunConfig& config = setup.config;
  const ParameterCounts parameters = count_parameters(setup.parameters);
  const std::int64_t since = alike_since(setup);
  record = std::make_unique<RunRecord>(
      RunRecord::Facts{.run_dir = config.run.dir,
                       .num_steps = config.train.steps,
                       .tokens_per_step = config.train.global_batch * config.data.sequence_length,
                       .parameters = parameters.all,
                       .flop_per_token = training_flop_per_token(
                           setup.run.plan.model, parameters, config.data.sequence_length),
                       .validation = validation_of(setup),
                       .predicted_step = setup.predicted_step,
                       .plain_every = config.log.every,
                       .tensorboard = config.log.tensorboard},
      meta.step);
  if (saves.last()) {
    record->make_up(*saves.last(), meta.step);
  }
  if (keeps_best(setup) && note_validations(config.run.dir, since, saves) && since >= meta.step) {
    record->warn(
        "the data for validation are others than before: the best checkpoint is chosen anew, by "
        "losses from now on; what the run was trained on before may be among them");
  }
  warn_of_full_disk(setup, saves);
}

void link_best_of_ended_run(const RunSetup& setup, RunSaves& saves) {
  if (!keeps_best(setup)) {
    return;
  }
  // Not worth the run, which has ended.
  try {
    note_validations(setup.config.run.dir, alike_since(setup), saves);
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

}  // namespace tessera
