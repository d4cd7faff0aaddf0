#include "tessera/train/start_state.h"

#include <iterator>
#include <span>
#include <string>

#include "tessera/actions/sum_order.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/checkpoint/require_model.h"
#include "tessera/config/config.h"
#include "tessera/dataset/run_data.h"
#include "tessera/dataset/same_data.h"
#include "tessera/resolve/adapters.h"
#include "tessera/resolve/changed_keys.h"
#include "tessera/resolve/require_checkpoint.h"
#include "tessera/resolve/stored_tokenizer.h"
#include "tessera/state/training_state.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/weights/start_weights.h"

namespace tessera {
namespace {

void warn_of_changed_keys(const RunConfig& config,
                          const CheckpointMeta& meta,
                          const std::filesystem::path& checkpoint) {
  try {
    const RunConfig before = parse_run_config(meta.config, "the checkpoint's config");
    std::string changed;
    for (const std::string& key : changed_keys(before, config, meta.step)) {
      changed += (changed.empty() ? "" : ", ") + key;
    }
    if (!changed.empty()) {
      log_warning(format(
          "not bit by bit the run that was never stopped, since these keys differ from {}: {}",
          checkpoint.string(),
          changed));
    }
    if (const std::string jump = learning_rate_jump(before, config, meta.step); !jump.empty()) {
      log_warning(jump);
    }
  } catch (const Error& error) {
    // A build with other keys made it; its state is good all the same.
    log_warning(
        format("cannot tell which keys differ from {}: {}", checkpoint.string(), error.what()));
  }
}

// "" where microbatches are added up as they are without a pipeline.
std::string digest_of_sums(const Plan& plan) {
  const std::string order =
      plan.pipeline ? sum_order(plan.pipeline->table, plan.pipeline->layers) : "";
  return order.empty() ? "" : digest(std::as_bytes(std::span(order))).xxh3_128;
}

void warn_of_other_sums(const RunSetup& setup,
                        const CheckpointMeta& meta,
                        const std::filesystem::path& checkpoint) {
  if (meta.sum_order == digest_of_sums(setup.run.plan)) {
    return;
  }
  log_warning(
      format("not bit by bit the run that was never stopped: pipeline.schedule = \"{}\" "
             "adds up microbatches in another order than the schedule of {}",
             setup.config.pipeline.schedule,
             checkpoint.string()));
}

// Files of the same names may have other texts.
void warn_of_other_data(const RunSequences& sequences,
                        const CheckpointMeta& meta,
                        const std::filesystem::path& checkpoint) {
  const std::string now = describe_sequences(sequences);
  if (meta.data.empty() || meta.data == now) {
    return;
  }
  log_warning(format("these are not the data that {} was trained on: found {}; it had {}",
                     checkpoint.string(),
                     now,
                     meta.data));
}

}  // namespace

CheckpointMeta load_checkpoint(const RankState& state, const std::filesystem::path& path) {
  const RunSetup& setup = state.setup;
  const RunConfig& config = setup.config;
  const CheckpointReader reader(
      path,
      {.verify = Verify::kOnLoad, .rank = state.world.rank(), .num_ranks = state.world.size()});
  require_known_model(path, reader.meta(), setup.run.plan.model.json);
  require_same_adapters(path, reader.meta(), setup.run.plan.model);
  require_model(
      reader, setup.run.plan.model.json, model_tensors(setup.parameters, config.optimizer.moments));
  if (!config.tokenizer.path.empty()) {
    require_tokenizer(config.tokenizer.path, path, reader.meta());
  }
  load_state(
      state.executor, setup.parameters, reader, state.part, static_cast<int>(config.run.threads));
  TESSERA_REQUIRE(reader.meta().seed == static_cast<std::uint64_t>(config.run.seed),
                  ErrorCode::kInvalidConfig,
                  "{} was made with run.seed = {}, found run.seed = {}",
                  path.string(),
                  reader.meta().seed,
                  config.run.seed);
  return reader.meta();
}

CheckpointMeta make_initial_state(const RankState& state, bool says) {
  const RunSetup& setup = state.setup;
  const auto seed = static_cast<std::uint64_t>(setup.config.run.seed);
  initialize_state(state.executor, setup.parameters, seed, state.part);
  if (!setup.config.model.weights.empty()) {
    const auto weights = open_start_weights(
        setup.config, {.rank = state.world.rank(), .num_ranks = state.world.size()});
    load_weights(state.executor, setup.parameters, *weights, state.part);
    if (says) {
      log_start_weights(setup.config);
    }
  }
  CheckpointMeta meta;
  meta.seed = seed;
  return meta;
}

void warn_of_changes(const RunSetup& setup,
                     const CheckpointMeta& meta,
                     const std::filesystem::path& checkpoint) {
  warn_of_changed_keys(setup.config, meta, checkpoint);
  warn_of_other_sums(setup, meta, checkpoint);
  warn_of_other_data(setup.sequences, meta, checkpoint);
}

void describe_run(const RunSetup& setup, CheckpointMeta& meta, RunSaves& saves) {
  const std::string& tokenizer = setup.config.tokenizer.path;
  meta.model = setup.run.plan.model.json;
  meta.config = to_toml(setup.config);
  if (!tokenizer.empty()) {
    meta.tokenizer = tokenizer_checksum(tokenizer);
    // So that a checkpoint is whole wherever it is moved. Any rank may write rank 0's part.
    saves.put_beside(tokenizer_copy({}).string(), read_tokenizer_file(tokenizer));
  }
  meta.data = describe_sequences(setup.sequences);
  meta.sum_order = digest_of_sums(setup.run.plan);
  meta.num_tensors = std::ssize(model_tensors(setup.parameters, setup.config.optimizer.moments));
}

}  // namespace tessera
