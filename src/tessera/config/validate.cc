#include <algorithm>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/config/config.h"

namespace tessera {
namespace {

void require_text(const RunConfig& config,
                  std::string_view key,
                  std::string_view value,
                  std::string_view expected) {
  TESSERA_REQUIRE(!value.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found an empty string, expected {}",
                  placed(config, key),
                  expected);
}

void require_dim(const RunConfig& config,
                 std::string_view key,
                 const std::optional<std::int64_t>& value) {
  TESSERA_REQUIRE(value.has_value(),
                  ErrorCode::kInvalidConfig,
                  "{}: found nothing, expected a value, because model.flavor is empty",
                  placed(config, key));
}

void validate_explicit_dims(const RunConfig& config) {
  require_dim(config, "model.dim", config.model.dim);
  require_dim(config, "model.layers", config.model.layers);
  require_dim(config, "model.heads", config.model.heads);
  require_dim(config, "model.ffn", config.model.ffn);
  require_dim(config, "model.vocab", config.model.vocab);
}

void validate_heads(const RunConfig& config) {
  const ModelSection& model = config.model;
  if (model.dim && model.heads) {
    const std::int64_t dim = *model.dim;
    const std::int64_t heads = *model.heads;
    TESSERA_REQUIRE(dim % heads == 0,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected a divisor of model.dim = {}",
                    placed(config, "model.heads"),
                    heads,
                    dim);
    TESSERA_REQUIRE(dim / heads % 2 == 0,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, which makes heads {} wide (model.dim = {}), expected an even "
                    "width for rotary positions",
                    placed(config, "model.heads"),
                    heads,
                    dim / heads,
                    dim);
  }
  if (model.heads && model.kv_heads) {
    TESSERA_REQUIRE(*model.heads % *model.kv_heads == 0,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected a divisor of model.heads = {}",
                    placed(config, "model.kv_heads"),
                    *model.kv_heads,
                    *model.heads);
  }
}

void validate_inputs(const RunConfig& config) {
  require_text(config, "run.dir", config.run.dir, "a directory");
  require_text(config, "tokenizer.path", config.tokenizer.path, "the path of a tokenizer.json");
  TESSERA_REQUIRE(!config.data.files.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found an empty list, expected at least one file",
                  placed(config, "data.files"));
  for (const std::string& file : config.data.files) {
    require_text(config, "data.files", file, "the path of a file");
  }
  require_text(
      config, "checkpoint.resume", config.checkpoint.resume, "auto, none or a checkpoint's path");
}

void validate_vocabulary(const RunConfig& config) {
  if (config.model.vocab && config.tokenizer.train_vocab > 0) {
    TESSERA_REQUIRE(config.tokenizer.train_vocab == *config.model.vocab,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected 0 or model.vocab = {}",
                    placed(config, "tokenizer.train_vocab"),
                    config.tokenizer.train_vocab,
                    *config.model.vocab);
  }
}

void validate_batch(const RunConfig& config) {
  const TrainSection& train = config.train;
  TESSERA_REQUIRE(train.global_batch % train.microbatch == 0,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected a divisor of train.global_batch = {}",
                  placed(config, "train.microbatch"),
                  train.microbatch,
                  train.global_batch);
}

void validate_schedule(const RunConfig& config) {
  const std::int64_t num_steps = config.train.steps;
  const std::int64_t decay = num_decay_steps(config.schedule, num_steps);
  TESSERA_REQUIRE(config.schedule.warmup + decay <= num_steps,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected at most {}: schedule.decay_ratio = {} takes {} of "
                  "train.steps = {}",
                  placed(config, "schedule.warmup"),
                  config.schedule.warmup,
                  num_steps - decay,
                  config.schedule.decay_ratio,
                  decay,
                  num_steps);
}

}  // namespace

void validate_run(const RunConfig& config) {
  validate_inputs(config);
  validate_batch(config);
  validate_schedule(config);
}

void validate(const RunConfig& config) {
  validate_run(config);
  if (config.model.flavor.empty()) {
    validate_explicit_dims(config);
  }
  validate_heads(config);
  validate_vocabulary(config);
}

}  // namespace tessera
