#include "tessera/train/open_record.h"

#include <cmath>
#include <filesystem>
#include <string>

#include "tessera/base/log.h"
#include "tessera/dataset/same_data.h"
#include "tessera/state/training_state.h"
#include "tessera/train/disk_space.h"
#include "tessera/train/session_log.h"

namespace tessera {
namespace {

// Of the steps before this start, so that the best one is known without a file of its own. Losses
// of other data say nothing of it.
void note_validations(const std::filesystem::path& run_dir,
                      std::int64_t since,
                      std::int64_t step_of_start,
                      RunSaves& saves,
                      RunRecord& record) {
  bool leaves_some_out = false;
  for_each_validation(run_dir, [&](std::int64_t step, double loss) {
    if (step > since || since == 0) {
      saves.note_validation(step, loss);
    } else {
      leaves_some_out = leaves_some_out || std::isfinite(loss);
    }
  });
  if (leaves_some_out && since >= step_of_start) {
    record.warn(
        "the data for validation are others than before: the best checkpoint is chosen anew, by "
        "losses from now on; what the run was trained on before may be among them");
  }
  saves.link_best();
}

void warn_of_full_disk(const RunSetup& setup, bool keeps_best, const RunSaves& saves) {
  const RunConfig& config = setup.config;
  std::int64_t bytes = 0;
  for (const CheckpointTensor& tensor : model_tensors(setup.parameters, config.optimizer.moments)) {
    bytes += static_cast<std::int64_t>(saved_bytes(tensor));
  }
  const std::string shortage = disk_shortage(config.run.dir,
                                             {.checkpoint_bytes = bytes,
                                              .keep = config.checkpoint.keep,
                                              .keeps_best = keeps_best,
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
  const bool validates = setup.programs.validation.has_value();
  const bool keeps_best = validates && config.checkpoint.keep_best;
  const ParameterCounts parameters = count_parameters(setup.parameters);
  const std::string validation =
      validates ? describe_validation(setup.sequences, config.validation.sequences) : "";
  const std::int64_t since = validated_alike_since(read_sessions(config.run.dir), validation);
  record = std::make_unique<RunRecord>(
      RunRecord::Facts{.run_dir = config.run.dir,
                       .num_steps = config.train.steps,
                       .tokens_per_step = config.train.global_batch * config.data.sequence_length,
                       .parameters = parameters.all,
                       .flop_per_token = training_flop_per_token(
                           setup.run.plan.model, parameters, config.data.sequence_length),
                       .validation = validation,
                       .plain_every = config.log.every,
                       .tensorboard = config.log.tensorboard},
      meta.step);
  if (saves.last()) {
    record->make_up(*saves.last(), meta.step);
  }
  if (keeps_best) {
    note_validations(config.run.dir, since, meta.step, saves, *record);
  }
  warn_of_full_disk(setup, keeps_best, saves);
}

}  // namespace tessera
