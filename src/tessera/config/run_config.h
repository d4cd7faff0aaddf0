#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/dtype.h"
#include "tessera/mesh/context_order.h"
#include "tessera/mesh/placement.h"
#include "tessera/models/model_section.h"
#include "tessera/optim/schedule.h"

namespace tessera {

// Everything that a run file may say. The meaning, type and range of each key stand once, in
// schema(); `tessera config` and docs/config.md print them. An empty optional follows from the
// model's flavor.

// kAuto: as each file's name says.
enum class DataFormat { kAuto, kText, kJsonl, kTokens, kMegatron, kChat };
enum class RawTokens { kU16, kU32 };
enum class ChatTemplateName { kAuto, kLlama3, kChatml };
enum class OptimizerName { kAdamW };
enum class DecayedWeights { kAll, kMatrices };
enum class Recompute {
  kAuto,
  kNone,
  kFull,
  kSelective,
  kFullButLastStage,
  kAttention,
  kEverySecondProduct
};
enum class AttentionOps { kFlash, kFusedSoftmax, kUnfused };
enum class Reduction { kOrdered, kNative };
enum class Float8Recipe { kOff, kTensorwise, kRowwise };

struct RunSection {
  std::string dir;
  std::int64_t seed = 42;
  std::int64_t threads = 0;  // per rank; 0 = the cores of this machine divided among its ranks
  std::string device = "cpu";
  bool cuda_graphs = true;
  bool deterministic = true;
  bool time_gemms = true;
  bool operator==(const RunSection&) const = default;
};

struct TokenizerSection {
  std::string path;
  std::int64_t train_vocab = 0;                      // 0 = never train
  std::vector<std::string> train_special = {};       // special tokens of one that is trained
  std::string train_chat = "none";                   // the chat template whose tokens it has
  std::optional<std::vector<std::string>> bos = {};  // empty = as the tokenizer's files say
  std::optional<std::vector<std::string>> eos = {};  // likewise
  bool operator==(const TokenizerSection&) const = default;
};

// One of several sources; what is left out is as [data] says.
struct DataSource {
  std::vector<std::string> files;
  double weight = 1.0;
  std::optional<DataFormat> format = {};
  std::optional<std::string> field = {};
  std::optional<RawTokens> token_type = {};
  std::optional<std::string> document_separator = {};
  bool operator==(const DataSource&) const = default;
};

struct DataSection {
  std::vector<std::string> files;  // the one source, or
  std::vector<DataSource> sources = {};
  DataFormat format = DataFormat::kAuto;
  std::string field = "text";              // of JSONL
  RawTokens token_type = RawTokens::kU16;  // of raw token files
  ChatTemplateName chat_template = ChatTemplateName::kAuto;
  bool skip_broken = false;                                // lines of JSONL and chat
  std::int64_t unpacked_limit = std::int64_t{256} << 30U;  // bytes of a .gz or .zst file
  double validation_share = 0.0;                           // of each source
  std::vector<std::string> validation_files = {};
  std::int64_t sequence_length = 512;  // tokens
  bool shuffle = true;
  bool document_mask = true;
  bool mask_boundary = false;
  std::string document_separator;  // empty = one file is one document
  bool operator==(const DataSection&) const = default;
};

struct ValidationSection {
  std::int64_t every = 0;      // steps; 0 = never
  std::int64_t sequences = 0;  // of those held out, evenly spread; 0 = all
  bool operator==(const ValidationSection&) const = default;
};

struct TrainSection {
  std::int64_t steps = 400;
  std::int64_t global_batch = 4;  // sequences per step
  std::int64_t microbatch = 1;    // sequences per rank and microbatch
  DType dtype = DType::kF32;      // f32 or bf16
  DType logits = DType::kF32;     // likewise
  bool tf32 = false;
  double dropout = 0.0;  // a rate; 0 = none
  bool operator==(const TrainSection&) const = default;
};

// Low-rank adapters in place of training all weights.
struct LoraSection {
  std::int64_t rank = 0;  // 0 = none: every weight is trained
  std::optional<double> alpha;
  std::vector<std::string> targets;  // empty = all
  bool operator==(const LoraSection&) const = default;
};

// Products of the layers in 8-bit floats.
struct Float8Section {
  Float8Recipe recipe = Float8Recipe::kOff;
  std::optional<DType> gradients;  // empty = f8e5m2 with one scale a tensor, else f8e4m3
  std::int64_t skip_first = 0;     // layers that stay in train.dtype
  std::int64_t skip_last = 0;
  bool head = false;
  bool fast_accumulation = false;
  bool keep_weight_codes = false;
  bool operator==(const Float8Section&) const = default;
};

struct OptimizerSection {
  OptimizerName name = OptimizerName::kAdamW;
  double lr = 8e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  DecayedWeights decay = DecayedWeights::kAll;
  double clip = 1.0;              // global L2 norm; 0 = off
  DType moments = DType::kF32;    // or bf16
  DType gradients = DType::kF32;  // likewise
  bool operator==(const OptimizerSection&) const = default;
};

struct ParallelSection {
  std::optional<std::int64_t> ranks;  // empty = as many as the launcher started, else 1
  std::optional<std::int64_t> data;   // empty = the ranks that the other degrees leave
  std::int64_t tensor = 1;
  bool sequence_parallel = true;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;

  // Ranks of each data rank, which read the same sequences.
  std::int64_t ranks_of_data() const { return tensor * context * pipeline; }

  bool operator==(const ParallelSection&) const = default;
};

// How the context ranks share each sequence.
struct ContextSection {
  ContextKind kind = ContextKind::kGather;
  std::optional<ContextBalance> balance = {};  // empty = zigzag where it balances anything
  std::string inner = {};                      // level of the inner ring; empty = as levels lie

  ContextLayout layout() const;

  bool operator==(const ContextSection&) const = default;
};

// How the ranks along the pipeline share the layers and the microbatches.
struct PipelineSection {
  std::string schedule = "1f1b";            // a name (actions/schedules.h), or the path of a table
  std::optional<std::int64_t> chunks = {};  // stages per rank; empty = the schedule's
  std::optional<std::vector<std::int64_t>> layers = {};  // by stage; empty = by their cost
  std::int64_t slices = 1;                               // of the tokens of a microbatch
  bool operator==(const PipelineSection&) const = default;
};

// Over how many data ranks each state is cut (mesh/placement.h): a preset, whose degrees single
// keys replace by a number or the name of a level.
struct StateSection {
  std::string preset = "fsdp";
  std::optional<std::string> param;
  std::optional<std::string> secondary;
  SecondaryUse secondary_use = SecondaryUse::kAll;
  std::optional<std::string> grad;
  std::optional<std::string> optimizer;
  std::optional<std::string> wire_param;
  std::optional<std::string> wire_grad;
  std::optional<std::string> wire_update;
  std::int64_t wire_block = 256;  // elements that share a scale
  bool operator==(const StateSection&) const = default;
};

struct CommSection {
  double deadline_seconds = 60;
  std::optional<Reduction> reduction;  // empty = native where the run can, else ordered
  bool overlap = true;
  std::int64_t overlap_layers = 1;
  bool operator==(const CommSection&) const = default;
};

struct ClusterSection {
  std::string file;  // empty = the ranks of the run as one level, "local"
  bool operator==(const ClusterSection&) const = default;
};

// "all", "8": so many from the front of each stage, "4-11": from one to another.
struct RecomputedLayers {
  std::int64_t of_stage = 0;  // from its front; 0: see the others
  std::int64_t first = 0;
  std::int64_t end = 0;  // 0: all

  bool is_all() const { return of_stage == 0 && end == 0; }

  bool operator==(const RecomputedLayers&) const = default;
};

std::string to_string(const RecomputedLayers& layers);

// Nothing where the text is of none of these forms.
std::optional<RecomputedLayers> parse_recomputed_layers(std::string_view text);

// How much of the states of a kind, or of activations, lies beside the device's memory. kAuto: what
// does not fit, as far as that costs least.
enum class Offload : std::uint8_t { kOff, kAuto, kAll };

std::string_view to_string(Offload offload);

// Where they do: on GPUs in the host's memory, on CPUs in a file, or as it is said.
enum class OffloadTo : std::uint8_t { kAuto, kHost, kFile };

std::string_view to_string(OffloadTo to);

struct MemorySection {
  Recompute recompute = Recompute::kAuto;
  std::vector<std::string> keep = {};           // ops, beside what "selective" keeps
  std::vector<std::string> recompute_ops = {};  // ops that it computes again, too
  RecomputedLayers recompute_layers = {};
  Offload offload_optimizer = Offload::kOff;
  Offload offload_parameters = Offload::kOff;
  Offload offload_activations = Offload::kOff;
  OffloadTo offload_to = OffloadTo::kAuto;
  std::string offload_dir = {};  // empty = run.dir
  std::int64_t limit_bytes = 0;  // per rank; 0 = what the machine has
  std::string chosen = {};       // what "auto" chose: resolve/memory_choice.h

  bool offloads() const {
    return offload_optimizer != Offload::kOff || offload_parameters != Offload::kOff ||
           offload_activations != Offload::kOff;
  }

  bool operator==(const MemorySection&) const = default;
};

struct CheckpointSection {
  std::int64_t every = 0;                    // steps; 0 = none by steps
  std::optional<double> every_minutes = {};  // 0 = none by time; empty = 15 where every = 0
  std::int64_t keep = 3;                     // newest checkpoints kept; 0 = all
  bool keep_best = true;                     // by validation loss, beside the newest
  bool async = true;
  std::string resume = "auto";     // auto = newest in run.dir | none | a checkpoint's path
  bool fall_back = true;           // from a damaged one, with auto
  double deadline_seconds = 1800;  // for the other ranks' disks
  bool operator==(const CheckpointSection&) const = default;
};

struct LogSection {
  std::int64_t every = 10;  // steps between plain lines when stderr is not a terminal
  bool tensorboard = true;
  bool operator==(const LogSection&) const = default;
};

// The continuation that `train` prints at its end.
struct SampleSection {
  std::string prompt;  // empty = none
  std::int64_t tokens = 64;
  double temperature = 0.8;  // 0 = always the likeliest token
  bool operator==(const SampleSection&) const = default;
};

struct PassesSection {
  bool fuse = true;
  bool group_gemms = true;
  bool gelu_products = true;
  AttentionOps attention = AttentionOps::kFlash;
  std::string dump;  // directory for every pass's output; empty = none
  bool operator==(const PassesSection&) const = default;
};

// Where the keys were set, for messages; no part of a config's value.
struct KeyOrigins {
  std::string file;  // the run file; empty where there is none
  std::map<std::string, std::string, std::less<>> places;  // "model.heads" -> "run.toml:4:9"

  bool operator==(const KeyOrigins& /*other*/) const { return true; }
};

struct RunConfig {
  RunSection run;
  ModelSection model;
  TokenizerSection tokenizer;
  DataSection data;
  TrainSection train;
  ValidationSection validation;
  LoraSection lora;
  Float8Section float8;
  OptimizerSection optimizer;
  Schedule schedule;
  ParallelSection parallel;
  ContextSection context;
  PipelineSection pipeline;
  StateSection state;
  CommSection comm;
  ClusterSection cluster;
  MemorySection memory;
  CheckpointSection checkpoint;
  LogSection log;
  SampleSection sample;
  PassesSection passes;
  KeyOrigins origins = {};
  bool operator==(const RunConfig&) const = default;
};

// "run.toml:4:9: model.heads" or "--model.heads=5: model.heads"; a key that was not set has the
// run file's name in front, where there is one.
std::string placed(const RunConfig& config, std::string_view key);

// Whether the schedule is the path of a table.
bool is_table(const PipelineSection& pipeline);

// data.sources with all that they leave out, or data.files as the one source.
std::vector<DataSource> data_sources(const DataSection& data);

std::string_view to_string(DataFormat format);
std::string_view to_string(ChatTemplateName name);
std::string_view to_string(RawTokens type);
std::string_view to_string(OptimizerName name);
std::string_view to_string(DecayedWeights decay);
std::string_view to_string(Recompute recompute);
std::string_view to_string(AttentionOps ops);
std::string_view to_string(Reduction reduction);
std::string_view to_string(Float8Recipe recipe);

}  // namespace tessera
