#include <algorithm>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/config/config.h"

namespace tessera {
namespace {

void require_text(std::string_view key, std::string_view value, std::string_view expected) {
  TESSERA_REQUIRE(!value.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found an empty string, expected {}",
                  key,
                  expected);
}

void require_dim(std::string_view key, const std::optional<std::int64_t>& value) {
  TESSERA_REQUIRE(value.has_value(),
                  ErrorCode::kInvalidConfig,
                  "{}: found nothing, expected a value, because model.flavor is empty",
                  key);
}

void validate_explicit_dims(const ModelSection& model) {
  require_dim("model.dim", model.dim);
  require_dim("model.layers", model.layers);
  require_dim("model.heads", model.heads);
  require_dim("model.ffn", model.ffn);
  require_dim("model.vocab", model.vocab);
}

void validate_heads(const ModelSection& model) {
  if (model.dim && model.heads) {
    const std::int64_t dim = *model.dim;
    const std::int64_t heads = *model.heads;
    TESSERA_REQUIRE(dim % heads == 0,
                    ErrorCode::kInvalidConfig,
                    "model.heads: found {}, expected a divisor of model.dim = {}",
                    heads,
                    dim);
    TESSERA_REQUIRE(dim / heads % 2 == 0,
                    ErrorCode::kInvalidConfig,
                    "model.heads: found {}, which makes heads {} wide (model.dim = {}), expected "
                    "an even width for rotary positions",
                    heads,
                    dim / heads,
                    dim);
  }
  if (model.heads && model.kv_heads) {
    TESSERA_REQUIRE(*model.heads % *model.kv_heads == 0,
                    ErrorCode::kInvalidConfig,
                    "model.kv_heads: found {}, expected a divisor of model.heads = {}",
                    *model.kv_heads,
                    *model.heads);
  }
}

void validate_inputs(const RunConfig& config) {
  require_text("run.dir", config.run.dir, "a directory");
  require_text("tokenizer.path", config.tokenizer.path, "the path of a tokenizer.json");
  TESSERA_REQUIRE(!config.data.files.empty(),
                  ErrorCode::kInvalidConfig,
                  "data.files: found an empty list, expected at least one file");
  for (const std::string& file : config.data.files) {
    require_text("data.files", file, "the path of a file");
  }
  require_text("checkpoint.resume", config.checkpoint.resume, "auto, none or a checkpoint's path");
}

void validate_vocabulary(const RunConfig& config) {
  if (config.model.vocab && config.tokenizer.train_vocab > 0) {
    TESSERA_REQUIRE(config.tokenizer.train_vocab == *config.model.vocab,
                    ErrorCode::kInvalidConfig,
                    "tokenizer.train_vocab: found {}, expected 0 or model.vocab = {}",
                    config.tokenizer.train_vocab,
                    *config.model.vocab);
  }
}

void validate_batch(const TrainSection& train) {
  TESSERA_REQUIRE(train.global_batch % train.microbatch == 0,
                  ErrorCode::kInvalidConfig,
                  "train.microbatch: found {}, expected a divisor of train.global_batch = {}",
                  train.microbatch,
                  train.global_batch);
}

void validate_schedule(const Schedule& schedule, std::int64_t num_steps) {
  const std::int64_t decay = num_decay_steps(schedule, num_steps);
  TESSERA_REQUIRE(schedule.warmup + decay <= num_steps,
                  ErrorCode::kInvalidConfig,
                  "schedule.warmup: found {}, expected at most {}: schedule.decay_ratio = {} takes "
                  "{} of train.steps = {}",
                  schedule.warmup,
                  num_steps - decay,
                  schedule.decay_ratio,
                  decay,
                  num_steps);
}

}  // namespace

void validate_run(const RunConfig& config) {
  validate_inputs(config);
  validate_batch(config.train);
  validate_schedule(config.schedule, config.train.steps);
}

void validate(const RunConfig& config) {
  validate_run(config);
  if (config.model.flavor.empty()) {
    validate_explicit_dims(config.model);
  }
  validate_heads(config.model);
  validate_vocabulary(config);
}

}  // namespace tessera
