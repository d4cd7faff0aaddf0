#include "bench/published_run.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/config/config.h"
#include "tessera/resolve/traits.h"

namespace tessera {
namespace {

// Data ranks of a row.
std::int64_t data_ranks(const PublishedRow& row) {
  return row.dp.value_or(std::max<std::int64_t>(1, row.gpus / (row.tp * row.cp * row.pp)));
}

// What no key, pass or op says yet; empty where there is all.
std::string missing(const PublishedRow& row) {
  const bool is_llama = row.family == "llama";
  const bool has_mlp = is_llama ? row.mlp == "swiglu" : row.mlp != "swiglu";
  if (row.ep > 1) {
    return "experts";
  }
  if (!has_mlp) {
    return format("mlp={} of family {}", row.mlp, row.family);
  }
  if (!is_llama && row.kv_heads != row.heads) {
    return format("fewer heads of keys in family {}", row.family);
  }
  if (row.has_dropout && row.attention == "flash") {
    return "dropout in flash attention";
  }
  if (row.state == "gemini") {
    return "state=gemini";
  }
  if (row.kv_heads % row.tp != 0 || row.heads % row.tp != 0) {
    return format("{} heads of keys for {} tensor ranks", row.kv_heads, row.tp);
  }
  const std::int64_t ranks = row.tp * row.cp * row.pp * data_ranks(row);
  if (ranks != row.gpus) {
    return format("a layout of {} ranks on {} GPUs", ranks, row.gpus);
  }
  const std::int64_t batch = row.microbatch * data_ranks(row);
  if (row.global_batch % batch != 0) {
    return format("global_batch {} in microbatches of {} on {} data ranks",
                  row.global_batch,
                  row.microbatch,
                  data_ranks(row));
  }
  return "";
}

class Keys {
 public:
  template <class Value>
  void set(std::string_view key, const Value& value) {
    keys_.push_back(format("--{}={}", key, value));
  }

  std::vector<std::string> take() { return std::move(keys_); }

 private:
  std::vector<std::string> keys_;
};

// Rows of the embedding: as Megatron pads them, unless they are whole words of 16 bytes.
std::int64_t padded_vocab(const PublishedRow& row) {
  constexpr std::int64_t kWord = 8;
  constexpr std::int64_t kMegatron = 128;
  if (row.vocab % (kWord * row.tp) == 0) {
    return row.vocab;
  }
  const std::int64_t step = kMegatron * row.tp;
  return (row.vocab + step - 1) / step * step;
}

// The nearest family that there is.
void set_model(const PublishedRow& row, Keys& keys) {
  keys.set("model.dim", row.hidden);
  keys.set("model.layers", row.layers);
  keys.set("model.heads", row.heads);
  keys.set("model.ffn", row.ffn);
  if (row.family == "llama") {
    keys.set("model.name", "llama3");
    keys.set("model.vocab", padded_vocab(row));
    keys.set("model.kv_heads", row.kv_heads);
    keys.set("model.tied", row.tied);
    return;
  }
  keys.set("model.vocab", row.vocab);
  keys.set("model.padded_vocab", padded_vocab(row));
  if (row.family == "gpt-rope") {
    keys.set("model.name", "neox");
    keys.set("model.parallel_residual", false);
    keys.set("model.rotary_fraction", 1.0);
  } else {
    keys.set("model.name", "gpt2");
    keys.set("model.positions", row.seq);
    keys.set("model.bias", row.family != "mpt");
    keys.set("model.alibi", row.family == "gpt-alibi");
  }
  keys.set("model.squared_relu", row.mlp == "squared-relu");
}

// Layers by stage: as many in each, with embedding and head a layer each where that divides.
std::string stage_layers(const PublishedRow& row, std::int64_t stages) {
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages));
  if (row.layers % stages == 0) {
    std::ranges::fill(layers, row.layers / stages);
  } else if ((row.layers + 2) % stages == 0) {
    std::ranges::fill(layers, (row.layers + 2) / stages);
    --layers.front();
    --layers.back();
  } else {
    return "";
  }
  std::string text;
  for (const std::int64_t each : layers) {
    text += format("{}{}", text.empty() ? "[" : ", ", each);
  }
  return text + "]";
}

void set_layout(const PublishedRow& row, Keys& keys) {
  keys.set("parallel.ranks", row.gpus);
  keys.set("parallel.tensor", row.tp);
  keys.set("parallel.sequence_parallel", row.sp);
  keys.set("parallel.context", row.cp);
  keys.set("parallel.pipeline", row.pp);
  if (row.pp > 1) {
    keys.set("pipeline.schedule", row.vpp > 1 ? "interleaved" : "1f1b");
    keys.set("pipeline.chunks", row.vpp);
    if (const std::string layers = stage_layers(row, row.pp * row.vpp); !layers.empty()) {
      keys.set("pipeline.layers", layers);
    }
  }
}

// Ranks over which gradients are sums, and states may be cut.
std::int64_t state_ranks(const PublishedRow& row) {
  return data_ranks(row) * row.cp;
}

// Ranks over which states are cut; of all those unless the row says fewer.
std::int64_t shard_ranks(const PublishedRow& row) {
  const std::int64_t data = state_ranks(row);
  const std::int64_t shard = row.shard_ranks.value_or(data);
  return row.state == "ddp" || shard < 1 || data % shard != 0 ? data : shard;
}

void set_state(const PublishedRow& row, Keys& keys) {
  const std::int64_t shard = shard_ranks(row);
  if (state_ranks(row) > 1) {
    keys.set("state.preset", row.state == "hsdp" ? "fsdp" : row.state);
    if (shard != state_ranks(row)) {
      keys.set("state.optimizer", shard);
      if (row.state != "zero1") {
        keys.set("state.grad", shard);
      }
      if (row.state == "zero3" || row.state == "hsdp" || row.state == "shard-grad-op") {
        keys.set("state.param", shard);
      }
      if (row.state == "zero3" || row.state == "hsdp") {
        keys.set("state.secondary", shard);
      }
    }
  }
  keys.set("state.wire_grad", row.grad_reduce_dtype == "fp32" ? "f32" : "bf16");
}

void set_step(const PublishedRow& row, Keys& keys) {
  keys.set("data.sequence_length", row.seq);
  keys.set("data.document_mask", false);
  keys.set("run.deterministic", false);
  keys.set("train.global_batch", row.global_batch);
  keys.set("train.microbatch", row.microbatch);
  keys.set("train.dtype", "bf16");
  keys.set("train.logits", "bf16");
  if (row.dtype.starts_with("fp8")) {
    keys.set("float8.recipe", row.dtype == "fp8-rowwise" ? "rowwise" : "tensorwise");
    keys.set("float8.keep_weight_codes", row.dtype == "fp8");
  }
}

// Of its releases of 2021 and of its core.
void add_traits_of_megatron(const PublishedRow& row, std::vector<std::string>& traits) {
  if (row.compiled == "fused-kernels") {
    traits.emplace_back("gradients=apart");
    if (row.pp > 1 && row.tp > 1 && !row.sp) {
      traits.emplace_back("scatter_gather");
    }
  }
  if (row.compiled == "te" && row.state == "zero1" && data_ranks(row) > 1) {
    traits.emplace_back("gather_ahead");
  }
  if (row.compiled == "te" && row.tp > 1) {
    traits.emplace_back("tensor_beside");
  }
}

// From rules that hold for whole systems, by the words of the row.
std::vector<std::string> traits_of(const PublishedRow& row) {
  std::vector<std::string> traits = {"buckets"};
  if (row.compiled == "eager") {
    traits.emplace_back("eager");
  } else if (row.compiled == "fused-kernels") {
    traits.emplace_back("fused_kernels");
  } else if (row.compiled == "compile") {
    traits.emplace_back("compiled");
  }
  if (row.attention != "flash") {
    traits.emplace_back(row.attention == "unfused" ? "attention=unfused"
                                                   : "attention=fused_softmax");
  }
  if (row.has_dropout) {
    traits.emplace_back("dropout");
  }
  std::string recompute = "recompute=" + row.recompute;
  std::ranges::replace(recompute, '-', '_');
  traits.push_back(std::move(recompute));
  if (row.dtype == "fp8-tensorwise-gather") {
    traits.emplace_back("fp8_all_gather");
  }
  const bool is_sharded = row.state == "zero3" || row.state == "hsdp";
  if (row.pp > 1 && is_sharded && data_ranks(row) > 1) {
    traits.emplace_back("no_reshard");
  }
  add_traits_of_megatron(row, traits);
  if (!row.traits.empty()) {
    traits.insert(traits.end(), row.traits.begin(), row.traits.end());
  } else if (row.pp > 1 && row.compiled == "fused-kernels") {
    traits.emplace_back("ddp=after");
  }
  return traits;
}

// Devices that the row's fastest links join: of a chip whose racks are one such domain, as many
// whole nodes of it as divide the run.
std::int64_t domain_of(const PublishedRow& row, const Cluster& chip) {
  std::int64_t domain = 1;
  for (std::size_t i = 0; i + 1 < chip.levels.size(); ++i) {
    const bool is_fast = chip.levels[i].bandwidth >= chip.levels[0].bandwidth;
    domain *= is_fast ? chip.levels[i].size : 1;
  }
  const std::int64_t node = row.gpus_per_node.value_or(domain);
  std::int64_t size = node;
  for (std::int64_t more = node; more <= std::min(domain, row.gpus); more += node) {
    size = row.gpus % more == 0 ? more : size;
  }
  return size;
}

// Cuts a level in two, so that a group of `devices` ends between them.
void cut_level(std::vector<Level>& levels, std::int64_t devices) {
  std::int64_t inside = 1;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const std::int64_t whole = inside * levels[i].size;
    if (devices > inside && devices < whole && devices % inside == 0 && whole % devices == 0) {
      Level outer = levels[i];
      levels[i].size = devices / inside;
      outer.size = whole / devices;
      outer.name += "s";
      levels.insert(levels.begin() + static_cast<std::ptrdiff_t>(i) + 1, outer);
      return;
    }
    inside = whole;
  }
}

}  // namespace

PublishedConstants PublishedConstants::load(const std::filesystem::path& directory,
                                            const std::filesystem::path& stacks) {
  PublishedConstants constants;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".toml") {
      constants.clusters[entry.path().filename().string()] = load_cluster(entry.path());
    }
  }
  for (SoftwareStack& stack : load_stacks(stacks)) {
    constants.stacks[stack.name] = stack;
  }
  return constants;
}

PublishedRun express(const PublishedRow& row, const PublishedDefaults& defaults) {
  PublishedRun run = {.chip = defaults.chip_file(row.chip), .stack = defaults.stack(row.compiled)};
  run.waits = missing(row);
  if (run.waits.empty()) {
    Keys keys;
    set_model(row, keys);
    set_step(row, keys);
    set_layout(row, keys);
    set_state(row, keys);
    run.keys = keys.take();
    run.traits = traits_of(row);
  }
  return run;
}

Cluster row_cluster(const PublishedRow& row, const Cluster& chip) {
  Cluster cluster = chip;
  Level network = chip.levels.back();
  if (row.intra_bandwidth || chip.levels.size() == 1) {
    const std::int64_t size = domain_of(row, chip);
    cluster.levels = {chip.levels.front()};
    cluster.levels[0].size = size;
    cluster.levels[0].bandwidth = row.intra_bandwidth.value_or(cluster.levels[0].bandwidth);
  } else {
    cluster.levels.pop_back();
  }
  const std::int64_t node = cluster.num_devices();
  network.size = (row.gpus + node - 1) / node;
  if (row.inter_bandwidth) {
    const double devices = network.shared ? static_cast<double>(node) : 1.0;
    network.bandwidth = *row.inter_bandwidth * devices;
  }
  if (network.size > 1) {
    cluster.levels.push_back(network);
  }
  cut_level(cluster.levels, shard_ranks(row) * row.tp);
  return cluster;
}

std::shared_ptr<const SimulatedRun> PublishedPrograms::get(const PublishedRun& run,
                                                           const Cluster& cluster) {
  std::string key = to_toml(cluster);
  for (const std::string& each : run.keys) {
    key += each + "\n";
  }
  for (const std::string& each : run.traits) {
    key += each + "\n";
  }
  std::shared_ptr<const SimulatedRun>& known = runs_[key];
  if (known == nullptr) {
    const std::filesystem::path file = directory_ / format("cluster-{}.toml", runs_.size());
    write_file_atomic(file, to_toml(cluster));
    std::vector<std::string> keys = run.keys;
    keys.push_back("--cluster.file=" + file.string());
    const std::vector<const Trait*> traits = find_traits(run.traits);
    known = std::make_shared<const SimulatedRun>(
        with_traits(load_run_config({}, keys, ConfigUse::kPlan), traits),
        cluster,
        changes_of(traits));
  }
  return known;
}

}  // namespace tessera
