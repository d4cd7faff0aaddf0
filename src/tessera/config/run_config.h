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
#include "tessera/optim/schedule.h"

namespace tessera {

// Everything that a run file may say. The meaning, type and range of each key stand once, in
// schema.cc; `tessera config` and docs/config.md print them. An empty optional follows from the
// model's flavor.

enum class DataFormat { kText };
enum class OptimizerName { kAdamW };
enum class Recompute { kNone, kFull };

struct RunSection {
  std::string dir;
  std::int64_t seed = 42;
  std::int64_t threads = 0;  // 0 = every core that this process may use
  bool operator==(const RunSection&) const = default;
};

struct ModelSection {
  std::string name = "llama3";
  std::string flavor;  // empty = the dims below say all
  std::optional<std::int64_t> dim;
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> heads;
  std::optional<std::int64_t> kv_heads;
  std::optional<std::int64_t> ffn;
  std::optional<std::int64_t> vocab;
  std::optional<bool> tied;
  std::optional<bool> rope_scaling;
  double rope_theta = 500000.0;
  double norm_eps = 1e-5;
  bool operator==(const ModelSection&) const = default;
};

struct TokenizerSection {
  std::string path;
  std::int64_t train_vocab = 0;  // 0 = never train
  bool operator==(const TokenizerSection&) const = default;
};

struct DataSection {
  std::vector<std::string> files;
  DataFormat format = DataFormat::kText;
  std::int64_t sequence_length = 512;  // tokens
  bool shuffle = true;
  bool document_mask = true;
  bool mask_boundary = false;
  std::string document_separator;  // empty = one file is one document
  bool operator==(const DataSection&) const = default;
};

struct TrainSection {
  std::int64_t steps = 400;
  std::int64_t global_batch = 4;  // sequences per step
  std::int64_t microbatch = 1;    // sequences per rank and microbatch
  DType dtype = DType::kF32;      // f32 or bf16
  bool operator==(const TrainSection&) const = default;
};

struct OptimizerSection {
  OptimizerName name = OptimizerName::kAdamW;
  double lr = 8e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  // global L2 norm; 0 = off
  bool operator==(const OptimizerSection&) const = default;
};

struct MemorySection {
  Recompute recompute = Recompute::kNone;
  std::int64_t limit_bytes = 0;  // 0 = what the machine has
  bool operator==(const MemorySection&) const = default;
};

struct CheckpointSection {
  std::int64_t every = 0;       // steps; 0 = only at the end
  std::int64_t keep = 3;        // newest checkpoints kept; 0 = all
  std::string resume = "auto";  // auto = newest in run.dir | none | a checkpoint's path
  bool operator==(const CheckpointSection&) const = default;
};

struct LogSection {
  std::int64_t every = 10;  // steps between plain lines when stderr is not a terminal
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
  OptimizerSection optimizer;
  Schedule schedule;
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

std::string_view to_string(DataFormat format);
std::string_view to_string(OptimizerName name);
std::string_view to_string(Recompute recompute);

}  // namespace tessera
