// Generation speed beside PyTorch, in one run: both continue a prompt greedily with a key/value
// cache on the same threads, alternately (A B A B). Prints tokens/s of prompt and continuation and
// the ratio of the medians of tokens, in f32 and bf16.
//
// usage: generate_bench [--rounds=N] [--batch=N] [--dtype=f32|bf16] [--peer=no]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/peer_process.h"
#include "bench/training.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/format.h"
#include "tessera/infer/cached_model.h"
#include "tessera/infer/sampler.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kThreads = 2;
constexpr std::int64_t kSequence = 512;
constexpr std::int64_t kPrompt = 128;
constexpr std::int64_t kTokens = 128;
constexpr double kTarget = 1.5;

// The 134 M model of train_bench.
LlamaConfig model_config() {
  return {.dim = 768, .layers = 12, .heads = 12, .kv_heads = 12, .ffn = 2048, .vocab = 32000};
}

struct Options {
  int rounds = 5;
  std::int64_t batch = 1;
  std::string dtype;  // empty: both
  bool with_peer = true;
};

// What one side took for prompts, and for each token that followed.
struct Side {
  std::vector<double> prompt_seconds;
  std::vector<double> token_seconds;
};

class Tessera {
 public:
  Tessera(std::int64_t batch, DType dtype)
      : model_(describe_llama(model_config()),
               make_cpu_backend(kThreads),
               {.dtype = dtype, .batch = batch, .sequence_length = kSequence, .chunk = kPrompt}) {
    initialize_state(model_.executor(), model_.parameters(), 1);
  }

  void run(Side& side) {
    const auto batch = static_cast<std::int64_t>(model_.batch());
    std::vector<std::vector<std::int32_t>> tokens(model_.batch());
    for (std::int64_t i = 0; i < batch; ++i) {
      model_.clear(i);
      for (std::int64_t position = 0; position < kPrompt; ++position) {
        tokens[static_cast<std::size_t>(i)].push_back(
            static_cast<std::int32_t>((position * 7919 + i * 104729) % model_config().vocab));
      }
    }
    Clock::time_point start = Clock::now();
    step(tokens);
    side.prompt_seconds.push_back(seconds_since(start));
    for (std::int64_t i = 0; i < kTokens; ++i) {
      start = Clock::now();
      step(tokens);
      side.token_seconds.push_back(seconds_since(start));
    }
  }

  void print_profile() {
    for (const auto& [op, seconds] : model_.executor().profile_step()) {
      std::printf("    %-28s %8.3f ms\n", op.c_str(), seconds * 1e3);
    }
  }

 private:
  // Feeds `tokens` and puts the likeliest token of each sequence in their place.
  void step(std::vector<std::vector<std::int32_t>>& tokens) {
    const std::vector<std::span<const std::int32_t>> unseen(tokens.begin(), tokens.end());
    model_.append(unseen);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = {
          sample_token(model_.logits(static_cast<std::int64_t>(i)), {.temperature = 0.0}, 0.0)};
    }
  }

  CachedModel model_;
};

class Torch {
 public:
  Torch(std::int64_t batch, std::string_view dtype)
      : process_(TESSERA_SOURCE_DIR "/bench/peers/torch_generate.py",
                 {{"dim", model_config().dim},
                  {"layers", model_config().layers},
                  {"heads", model_config().heads},
                  {"ffn", model_config().ffn},
                  {"vocab", model_config().vocab},
                  {"batch", batch},
                  {"seq", kSequence},
                  {"threads", std::int64_t{kThreads}}},
                 dtype) {}

  void run(Side& side) {
    const nlohmann::json answer = process_.ask({{"prompt", kPrompt}, {"tokens", kTokens}});
    side.prompt_seconds.push_back(answer.at("prompt_seconds"));
    for (const double seconds : answer.at("seconds")) {
      side.token_seconds.push_back(seconds);
    }
  }

 private:
  PeerProcess process_;
};

double tokens_per_second(const Side& side, std::int64_t batch) {
  return static_cast<double>(batch) / median(side.token_seconds);
}

void print_side(const char* name, const Options& options, const Side& side) {
  std::printf("  %-8s prompt %8.1f tokens/s   then %7.1f tokens/s (%.1f at best)\n",
              name,
              static_cast<double>(options.batch * kPrompt) / median(side.prompt_seconds),
              tokens_per_second(side, options.batch),
              static_cast<double>(options.batch) / std::ranges::min(side.token_seconds));
}

// Tokens/s of ours and PyTorch's; 0 for a side that was not asked for.
std::pair<double, double> run_dtype(const Options& options, std::string_view dtype) {
  std::printf("134m %s: batch %ld, prompt %ld, %ld tokens, %d threads\n",
              std::string(dtype).c_str(),
              static_cast<long>(options.batch),
              static_cast<long>(kPrompt),
              static_cast<long>(kTokens),
              kThreads);
  Tessera own(options.batch, dtype == "bf16" ? DType::kBF16 : DType::kF32);
  std::unique_ptr<Torch> torch =
      options.with_peer ? std::make_unique<Torch>(options.batch, dtype) : nullptr;
  Side own_side;
  Side torch_side;
  Side warm_up;
  own.run(warm_up);
  if (torch) {
    torch->run(warm_up);
  }
  for (int round = 0; round < options.rounds; ++round) {
    own.run(own_side);
    if (torch) {
      torch->run(torch_side);
    }
  }
  print_side("tessera", options, own_side);
  own.print_profile();
  const double found = tokens_per_second(own_side, options.batch);
  if (!torch) {
    return {found, 0.0};
  }
  print_side("pytorch", options, torch_side);
  const double peer = tokens_per_second(torch_side, options.batch);
  std::printf("  ratio in %s: %.2f\n", std::string(dtype).c_str(), found / peer);
  return {found, peer};
}

void run_benchmarks(std::span<char*> arguments) {
  Options options;
  for (const std::string_view argument : arguments.subspan(1)) {
    const std::size_t equals = argument.find('=');
    const std::string value(argument.substr(equals == std::string_view::npos ? 0 : equals + 1));
    if (argument.starts_with("--rounds=")) {
      options.rounds = std::atoi(value.c_str());
    } else if (argument.starts_with("--batch=")) {
      options.batch = std::atoll(value.c_str());
    } else if (argument.starts_with("--dtype=")) {
      options.dtype = value;
    } else if (argument == "--peer=no") {
      options.with_peer = false;
    }
  }
  double own = 0.0;
  double peer = 0.0;
  for (const std::string_view dtype : {"f32", "bf16"}) {
    if (options.dtype.empty() || options.dtype == dtype) {
      const auto [found, other] = run_dtype(options, dtype);
      own = std::max(own, found);
      peer = std::max(peer, other);
    }
  }
  if (peer > 0.0) {
    std::printf("  ratio of the best modes: %.2f   target %.1f\n", own / peer, kTarget);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tessera::run_benchmarks({argv, static_cast<std::size_t>(argc)});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
