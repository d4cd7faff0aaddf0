#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/config/config.h"
#include "tessera/config/validate_context.h"

namespace tessera {
namespace {

void require_text(const RunConfig& config,
                  std::string_view key,
                  std::string_view value,
                  std::string_view expected) {
  const KeyOrigins& origins = config.origins;
  const bool is_from_code = origins.file.empty() && origins.places.empty();
  const bool is_left_out = !is_from_code && !origins.places.contains(key);
  TESSERA_REQUIRE(!value.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected {}",
                  placed(config, key),
                  is_left_out ? "nothing" : "an empty string",
                  expected);
}

void require_dim(const RunConfig& config,
                 std::string_view key,
                 const std::optional<std::int64_t>& value) {
  TESSERA_REQUIRE(
      value.has_value(),
      ErrorCode::kInvalidConfig,
      "{}: found nothing, expected a value, because model.flavor and model.weights are empty",
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
  if (model.head_dim) {
    TESSERA_REQUIRE(*model.head_dim % 2 == 0,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected an even number: rotary positions turn pairs",
                    placed(config, "model.head_dim"),
                    *model.head_dim);
  } else if (model.dim && model.heads) {
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

// Each of these dims is cut into as many parts.
void validate_tensor(const RunConfig& config) {
  const std::int64_t tensor = config.parallel.tensor;
  const auto require_divides = [&](std::string_view key, const std::optional<std::int64_t>& heads) {
    TESSERA_REQUIRE(!heads || *heads % tensor == 0,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected a divisor of {} = {}",
                    placed(config, "parallel.tensor"),
                    tensor,
                    key,
                    *heads);
  };
  require_divides("model.heads", config.model.heads);
  require_divides("model.kv_heads", config.model.kv_heads);
}

void require_files(const RunConfig& config,
                   std::string_view key,
                   const std::vector<std::string>& files) {
  TESSERA_REQUIRE(!files.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found an empty list, expected at least one file",
                  placed(config, key));
  for (const std::string& file : files) {
    require_text(config, key, file, "the path of a file");
  }
}

void validate_data(const RunConfig& config) {
  const DataSection& data = config.data;
  if (data.sources.empty()) {
    require_files(config, "data.files", data.files);
  } else {
    TESSERA_REQUIRE(data.files.empty(),
                    ErrorCode::kInvalidConfig,
                    "{}: found files beside data.sources, expected one of the two",
                    placed(config, "data.files"));
  }
  double weights = 0;
  for (const DataSource& source : data.sources) {
    require_files(config, "data.sources", source.files);
    weights += source.weight;
  }
  for (const DataSource& source : data.sources) {
    // Parts of 2^32 draws.
    TESSERA_REQUIRE(source.weight >= 1e-9 * weights,
                    ErrorCode::kInvalidConfig,
                    "{}: found a weight of {} beside a sum of {}, expected at least a part in 10^9",
                    placed(config, "data.sources"),
                    source.weight,
                    weights);
  }
  for (const std::string& file : data.validation_files) {
    require_text(config, "data.validation_files", file, "the path of a file");
  }
  TESSERA_REQUIRE(data.validation_files.empty() || data.validation_share == 0,
                  ErrorCode::kInvalidConfig,
                  "{}: found {} beside data.validation_files, expected one of the two",
                  placed(config, "data.validation_share"),
                  data.validation_share);
}

void validate_validation(const RunConfig& config) {
  TESSERA_REQUIRE(config.validation.every == 0 || config.data.validation_share > 0 ||
                      !config.data.validation_files.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, and nothing to validate on: set data.validation_share or "
                  "data.validation_files",
                  placed(config, "validation.every"),
                  config.validation.every);
}

void validate_inputs(const RunConfig& config) {
  require_text(config, "run.dir", config.run.dir, "a directory");
  validate_data(config);
  validate_validation(config);
  require_text(
      config, "checkpoint.resume", config.checkpoint.resume, "auto, none or a checkpoint's path");
}

void validate_vocabulary(const RunConfig& config) {
  if (config.model.vocab) {
    TESSERA_REQUIRE(config.tokenizer.train_vocab <= *config.model.vocab,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected at most model.vocab = {}",
                    placed(config, "tokenizer.train_vocab"),
                    config.tokenizer.train_vocab,
                    *config.model.vocab);
  }
  const auto require_trained = [&](std::string_view key, bool is_set) {
    TESSERA_REQUIRE(!is_set || config.tokenizer.train_vocab > 0,
                    ErrorCode::kInvalidConfig,
                    "{}: set, but tokenizer.train_vocab is 0, so that no tokenizer is trained: set "
                    "it, too, or leave this out",
                    placed(config, key));
  };
  require_trained("tokenizer.train_special", !config.tokenizer.train_special.empty());
  require_trained("tokenizer.train_chat", config.tokenizer.train_chat != "none");
}

void validate_batch(const RunConfig& config) {
  const TrainSection& train = config.train;
  const std::int64_t data = config.parallel.data.value_or(1);
  if (data == 1) {
    TESSERA_REQUIRE(train.global_batch % train.microbatch == 0,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected a divisor of train.global_batch = {}",
                    placed(config, "train.microbatch"),
                    train.microbatch,
                    train.global_batch);
    return;
  }
  const std::int64_t together = train.microbatch * data;
  TESSERA_REQUIRE(train.global_batch % together == 0,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected a multiple of {}: train.microbatch = {} on each of "
                  "parallel.data = {} ranks",
                  placed(config, "train.global_batch"),
                  train.global_batch,
                  together,
                  train.microbatch,
                  data);
}

void validate_lora(const RunConfig& config) {
  const LoraSection& lora = config.lora;
  const auto require_rank = [&](std::string_view key, bool is_set) {
    TESSERA_REQUIRE(lora.rank > 0 || !is_set,
                    ErrorCode::kInvalidConfig,
                    "{}: found a value, but lora.rank = 0: expected a rank, or none of [lora]",
                    placed(config, key));
  };
  require_rank("lora.alpha", lora.alpha.has_value());
  require_rank("lora.targets", !lora.targets.empty());
}

void validate_float8(const RunConfig& config) {
  const Float8Section& float8 = config.float8;
  const auto require_recipe = [&](std::string_view key, bool is_set) {
    TESSERA_REQUIRE(float8.recipe != Float8Recipe::kOff || !is_set,
                    ErrorCode::kInvalidConfig,
                    "{}: found a value, but float8.recipe = \"off\": expected tensorwise or "
                    "rowwise, or none of [float8]",
                    placed(config, key));
  };
  require_recipe("float8.gradients", float8.gradients.has_value());
  require_recipe("float8.skip_first", float8.skip_first > 0);
  require_recipe("float8.skip_last", float8.skip_last > 0);
  require_recipe("float8.head", float8.head);
  require_recipe("float8.fast_accumulation", float8.fast_accumulation);
  TESSERA_REQUIRE(float8.recipe == Float8Recipe::kTensorwise || !float8.keep_weight_codes,
                  ErrorCode::kInvalidConfig,
                  "{}: found true, but float8.recipe = \"{}\": expected tensorwise, whose codes of "
                  "weights serve forward and backward",
                  placed(config, "float8.keep_weight_codes"),
                  to_string(float8.recipe));
}

// At least one layer must be left.
void validate_float8_layers(const RunConfig& config) {
  const Float8Section& float8 = config.float8;
  const std::int64_t skipped = float8.skip_first + float8.skip_last;
  TESSERA_REQUIRE(
      float8.recipe == Float8Recipe::kOff || !config.model.layers || skipped < *config.model.layers,
      ErrorCode::kInvalidConfig,
      "{}: found {}, which with float8.skip_last = {} leaves none of model.layers = {} "
      "in 8-bit floats: expected fewer, or float8.recipe = \"off\"",
      placed(config, "float8.skip_first"),
      float8.skip_first,
      float8.skip_last,
      *config.model.layers);
}

// What is frozen as it was drawn is of no use. A checkpoint that is named may hold the weights.
void validate_adapted_weights(const RunConfig& config) {
  const std::string& resume = config.checkpoint.resume;
  TESSERA_REQUIRE(config.lora.rank == 0 || !config.model.weights.empty() ||
                      (resume != "auto" && resume != "none"),
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, and no weights to adapt: set model.weights",
                  placed(config, "lora.rank"),
                  config.lora.rank);
}

// What a moment loses in a step must not be lost when it is rounded to 8 bits: with a decay above
// 0.996 one of zero gradients would stay where it is.
void validate_moments(const RunConfig& config) {
  constexpr double kLargest = 0.99;
  const OptimizerSection& optimizer = config.optimizer;
  TESSERA_REQUIRE(
      optimizer.moments == DType::kF32 || std::ranges::max(optimizer.betas) <= kLargest,
      ErrorCode::kInvalidConfig,
      "{}: found bf16, whose steps are too wide for optimizer.betas = [{}, {}]: expected "
      "values of at most {}, or f32",
      placed(config, "optimizer.moments"),
      optimizer.betas[0],
      optimizer.betas[1],
      kLargest);
}

void validate_logits(const RunConfig& config) {
  TESSERA_REQUIRE(config.train.logits == DType::kF32 || config.train.dtype == DType::kBF16,
                  ErrorCode::kInvalidConfig,
                  "{}: found bf16, with train.dtype = \"{}\": expected f32",
                  placed(config, "train.logits"),
                  name(config.train.dtype));
}

// Sums of gradients are f32.
void validate_gradients(const RunConfig& config) {
  const bool is_f32 = config.optimizer.gradients == DType::kF32;
  TESSERA_REQUIRE(is_f32 || config.train.dtype == DType::kBF16,
                  ErrorCode::kInvalidConfig,
                  "{}: found bf16, with train.dtype = \"{}\": expected f32",
                  placed(config, "optimizer.gradients"),
                  name(config.train.dtype));
  const std::int64_t context = config.parallel.context;
  const std::int64_t data = config.parallel.data.value_or(1);
  TESSERA_REQUIRE(
      is_f32 || (data * context == 1 && config.train.global_batch == config.train.microbatch),
      ErrorCode::kInvalidConfig,
      "{}: found bf16, which are not added up, with {} data ranks{} and "
      "train.global_batch = {} in microbatches of {}: expected f32, or one of each",
      placed(config, "optimizer.gradients"),
      data,
      context > 1 ? format(", {} context ranks", context) : "",
      config.train.global_batch,
      config.train.microbatch);
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

void validate_offload(const RunConfig& config) {
  const MemorySection& memory = config.memory;
  const bool on_gpu = config.run.device == "cuda";
  const auto require_effect =
      [&](std::string_view key, bool is_set, bool has, std::string_view of) {
        TESSERA_REQUIRE(!is_set || has,
                        ErrorCode::kInvalidConfig,
                        "{}: has no effect without {}: set that, or leave it out",
                        placed(config, key),
                        of);
      };
  const bool offloads = memory.offloads();
  require_effect(
      "memory.offload_to",
      memory.offload_to != OffloadTo::kAuto,
      offloads,
      "memory.offload_optimizer, offload_parameters or offload_activations = \"auto\" or \"all\"");
  const bool to_file =
      memory.offload_to == OffloadTo::kFile || (memory.offload_to == OffloadTo::kAuto && !on_gpu);
  require_effect("memory.offload_dir",
                 !memory.offload_dir.empty(),
                 offloads && to_file,
                 "anything that is offloaded to files (memory.offload_optimizer, "
                 "offload_parameters or offload_activations = \"auto\" or \"all\", "
                 "memory.offload_to = \"file\")");
  TESSERA_REQUIRE(!on_gpu || memory.offload_to != OffloadTo::kFile,
                  ErrorCode::kUnsupported,
                  "{}: found \"file\", and what lies on a GPU can be offloaded to \"host\" alone",
                  placed(config, "memory.offload_to"));
}

// Of what a kind of recompute does not look at.
void validate_memory(const RunConfig& config) {
  const MemorySection& memory = config.memory;
  const auto require_kinds = [&](std::string_view key, const std::vector<Recompute>& kinds) {
    TESSERA_REQUIRE(std::ranges::count(kinds, memory.recompute) > 0,
                    ErrorCode::kInvalidConfig,
                    "{}: has no effect with memory.recompute = \"{}\": set that to \"{}\", or "
                    "leave it out",
                    placed(config, key),
                    to_string(memory.recompute),
                    to_string(kinds.front()));
  };
  using enum Recompute;
  if (!memory.keep.empty() || !memory.recompute_ops.empty()) {
    require_kinds(memory.keep.empty() ? "memory.recompute_ops" : "memory.keep", {kSelective});
  }
  if (!memory.recompute_layers.is_all()) {
    require_kinds("memory.recompute_layers", {kFull, kSelective, kAttention, kEverySecondProduct});
  }
  validate_offload(config);
}

// Of a pipeline, where there is none.
void validate_pipeline(const RunConfig& config) {
  const PipelineSection& pipeline = config.pipeline;
  const auto require_pipeline = [&](std::string_view key, bool is_set) {
    TESSERA_REQUIRE(config.parallel.pipeline > 1 || !is_set,
                    ErrorCode::kInvalidConfig,
                    "{}: has no effect with parallel.pipeline = 1: set that to 2 or more, or leave "
                    "[pipeline] out",
                    placed(config, key));
  };
  require_pipeline("pipeline.schedule", pipeline.schedule != PipelineSection().schedule);
  require_pipeline("pipeline.chunks", pipeline.chunks.has_value());
  require_pipeline("pipeline.layers", pipeline.layers.has_value());
  require_pipeline("pipeline.slices", pipeline.slices != 1);
  TESSERA_REQUIRE(pipeline.slices <= config.data.sequence_length,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected at most the tokens of a sequence: "
                  "data.sequence_length = {}",
                  placed(config, "pipeline.slices"),
                  pipeline.slices,
                  config.data.sequence_length);
}

// "parallel.tensor = 2 and parallel.context = 2" of those degrees that are more than 1.
std::string list_degrees(std::initializer_list<std::pair<std::string_view, std::int64_t>> degrees) {
  std::string text;
  for (const auto& [key, degree] : degrees) {
    if (degree > 1) {
      text += format("{}{} = {}", text.empty() ? "" : " and ", key, degree);
    }
  }
  return text;
}

// What of `ranks` the degrees of `taken` leave.
void require_divides(const RunConfig& config,
                     std::pair<std::string_view, std::int64_t> degree,
                     std::int64_t left,
                     const std::string& taken) {
  if (left % degree.second == 0) {
    return;
  }
  std::string divisors = format("{}", left);
  const char* separator = " or ";
  for (std::int64_t divisor = left / 2; divisor > 1; --divisor) {
    if (left % divisor == 0) {
      divisors = format("{}{}{}", divisor, separator, divisors);
      separator = ", ";
    }
  }
  const bool takes_more = taken.find(" and ") != std::string::npos;
  fail(ErrorCode::kInvalidConfig,
       "{} = {} does not divide {}{}; {} {}",
       placed(config, degree.first),
       degree.second,
       taken.empty()
           ? ""
           : format("the {} that {} {} of ", left, taken, takes_more ? "leave" : "leaves"),
       format_plural(*config.parallel.ranks, "rank"),
       divisors,
       divisors.find(' ') == std::string::npos ? "does" : "do");
}

}  // namespace

void validate_degrees(const RunConfig& config) {
  const ParallelSection& parallel = config.parallel;
  if (!parallel.ranks) {
    return;
  }
  const std::int64_t ranks = *parallel.ranks;
  const std::int64_t of_data = parallel.ranks_of_data();
  if (parallel.data) {
    TESSERA_REQUIRE(*parallel.data * of_data == ranks,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, which with {} makes {} ranks, expected "
                    "parallel.ranks = {}; leave parallel.data out to take the ranks that are left",
                    placed(config, "parallel.data"),
                    *parallel.data,
                    of_data == 1 ? "parallel.tensor = 1"
                                 : list_degrees({{"parallel.tensor", parallel.tensor},
                                                 {"parallel.context", parallel.context},
                                                 {"parallel.pipeline", parallel.pipeline}}),
                    *parallel.data * of_data,
                    ranks);
    return;
  }
  TESSERA_REQUIRE(ranks % parallel.tensor == 0,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected a divisor of parallel.ranks = {}",
                  placed(config, "parallel.tensor"),
                  parallel.tensor,
                  ranks);
  require_divides(config,
                  {"parallel.context", parallel.context},
                  ranks / parallel.tensor,
                  list_degrees({{"parallel.tensor", parallel.tensor}}));
  require_divides(
      config,
      {"parallel.pipeline", parallel.pipeline},
      ranks / parallel.tensor / parallel.context,
      list_degrees({{"parallel.tensor", parallel.tensor}, {"parallel.context", parallel.context}}));
}

void validate_dropout(const RunConfig& config) {
  TESSERA_REQUIRE(
      config.train.dropout == 0.0 || config.passes.attention != AttentionOps::kFlash,
      ErrorCode::kInvalidConfig,
      "{}: found {}, expected 0, since passes.attention = \"flash\" has no probabilities to drop: "
      "\"fused_softmax\" and \"unfused\" have",
      placed(config, "train.dropout"),
      config.train.dropout);
}

void validate_run(const RunConfig& config, ConfigUse use) {
  if (use == ConfigUse::kRun) {
    validate_inputs(config);
  }
  validate_degrees(config);
  validate_memory(config);
  validate_pipeline(config);
  validate_context(config);
  validate_batch(config);
  validate_lora(config);
  validate_float8(config);
  validate_moments(config);
  validate_logits(config);
  validate_dropout(config);
  validate_gradients(config);
  validate_schedule(config);
}

void validate(const RunConfig& config, ConfigUse use) {
  if (use == ConfigUse::kLayout) {
    validate_degrees(config);
    return;
  }
  validate_run(config, use);
  if (config.model.flavor.empty() && config.model.weights.empty()) {
    validate_explicit_dims(config);
  }
  validate_heads(config);
  validate_tensor(config);
  validate_exchanged_heads(config);
  validate_vocabulary(config);
  validate_float8_layers(config);
  if (use == ConfigUse::kRun) {
    validate_adapted_weights(config);
  }
  TESSERA_REQUIRE(!config.model.grow_vocab || !config.model.weights.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found true, and no weights to add ids to: set model.weights",
                  placed(config, "model.grow_vocab"));
}

}  // namespace tessera
