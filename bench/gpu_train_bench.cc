// Training on one GPU beside PyTorch, float8 beside our own bf16: each case as processes that take
// turns (A B A B), since two models of this size do not fit side by side. Prints tokens/s, the
// ratio of the medians and its target, how long the GPU was idle, the time to the first step, and
// memory beside the plan.
//
// usage: gpu_train_bench [--case=NAME] [--peer=SCRIPT] [--rounds=N] [--device=cpu]
//        gpu_train_bench --own=NAME     one process of ours; prints a JSON object
//   --peer    bench/peers/torch_llama_gpu.py; without it PyTorch is left out
//   --device  cpu runs a small case there: to try the program itself

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "bench/gpu_activity.h"
#include "bench/gpu_ceilings.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/devices.h"
#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/base/units.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/pipeline.h"
#include "tessera/runtime/executor.h"
#include "tessera/train/step_program.h"
#include "tessera/train/training_state.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr int kWarmup = 3;
constexpr int kSteps = 6;  // timed ones of a process

struct Case {
  std::string name;
  bool llama = true;
  LlamaConfig sizes;
  std::int64_t batch = 1;
  std::int64_t seq = 0;
  double target = 0;       // of tokens/s over the peer's
  double stretch = 0;      // beyond it
  double idle_target = 0;  // 0: none is set
  bool small = false;      // on the CPU
  std::string note = "";
  std::optional<Float8Options> float8 = {};
  std::string beside = "";  // the case of ours that it is compared with, in place of PyTorch

  double tokens() const { return static_cast<double>(batch * seq); }

  ModelDescription description() const {
    if (llama) {
      return describe_llama(sizes);
    }
    return describe_gpt2({.dim = sizes.dim,
                          .layers = sizes.layers,
                          .heads = sizes.heads,
                          .ffn = sizes.ffn,
                          .vocab = sizes.vocab,
                          .padded_vocab = sizes.vocab,
                          .positions = seq});
  }
};

std::vector<Case> cases() {
  return {
      {.name = "llama",
       .sizes =
           {.dim = 4096, .layers = 16, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 128256},
       .batch = 1,
       .seq = 8192,
       .target = 1.12,
       .stretch = 1.25,
       .idle_target = 0.01},
      {.name = "llama-float8",
       .sizes =
           {.dim = 4096, .layers = 16, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 128256},
       .batch = 1,
       .seq = 8192,
       .target = 1.3,
       .note = "products of the layers in 8-bit floats, one scale a tensor",
       .float8 = Float8Options{},
       .beside = "llama"},
      {.name = "gpt2",
       .llama = false,
       .sizes =
           {.dim = 768, .layers = 12, .heads = 12, .kv_heads = 12, .ffn = 3072, .vocab = 50304},
       .batch = 32,
       .seq = 1024,
       .target = 1.1,
       .note = "goal: 600,000 tokens/s"},
      {.name = "small",
       .sizes = {.dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 128, .vocab = 256},
       .batch = 2,
       .seq = 64,
       .small = true},
      {.name = "small-float8",
       .sizes = {.dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 128, .vocab = 256},
       .batch = 2,
       .seq = 64,
       .small = true,
       .float8 = Float8Options{},
       .beside = "small"},
      {.name = "small-gpt2",
       .llama = false,
       .sizes = {.dim = 64, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 256, .vocab = 256},
       .batch = 2,
       .seq = 64,
       .small = true}};
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0.0 : values[values.size() / 2];
}

// The training program of a case on random tokens.
class Training {
 public:
  Training(const Case& test, Backend& backend)
      : graph_(training_graph(test.description(), test.batch, test.seq, DType::kBF16)),
        program_(compile_training(
            graph_,
            {.float8 = test.float8,
             .attention = {.whole_rows = true},
             .workspace_bytes =
                 [&](const Op& op, std::span<const View> in, std::span<const View> out) {
                   return backend.workspace_bytes(op, in, out);
                 }})),
        executor_(program_, backend),
        tokens_(test.tokens()) {
    const Clock::time_point start = Clock::now();
    initialize_state(executor_, parameter_inits(graph_), 1);
    init_seconds_ = seconds_since(start);
    std::uint32_t random = 12345;
    for (const Binding& input : program_.inputs) {
      auto* values = reinterpret_cast<std::int32_t*>(executor_.bytes(input).data());
      for (std::int64_t i = 0; i < input.tensor.type.num_elements(); ++i) {
        random = random * 1664525U + 1013904223U;
        const auto token = static_cast<std::int32_t>((random >> 8U) %
                                                     static_cast<std::uint32_t>(test.sizes.vocab));
        values[i] = input.name == "documents"   ? 0
                    : input.name == "positions" ? static_cast<std::int32_t>(i % test.seq)
                                                : token;
      }
    }
    executor_.set_scalar("seed", static_cast<float>(1.0 / tokens_));
    executor_.set_scalar("learning_rate", 3e-4F);
    executor_.set_scalar("apply", 1.0F);
  }

  double step() {
    const Clock::time_point start = Clock::now();
    executor_.set_scalar("update_number", static_cast<float>(++updates_));
    executor_.run_step();
    return seconds_since(start);
  }

  // Per token.
  double loss() { return double{executor_.output_scalar("loss")} / tokens_; }

  double init_seconds() const { return init_seconds_; }

  std::int64_t plan_bytes() const { return program_.arena_bytes; }

 private:
  Graph graph_;
  Program program_;
  Executor executor_;
  double tokens_;
  double init_seconds_ = 0;
  int updates_ = 0;
};

// As a run with run.time_gemms has it.
DeviceOptions device_options() {
  DeviceOptions options;
  if (const auto cache = user_cache_directory()) {
    options.algorithm_files = {*cache / "gemms.txt"};
  }
  return options;
}

// What a process of ours does, from `start` of the process on.
Json run_own(const Case& test, Clock::time_point start) {
  const std::int64_t free_before = test.small ? 0 : free_device_bytes();
  const std::unique_ptr<Backend> backend =
      test.small ? make_cpu_backend(1) : make_device_backend(0, 1, device_options());
  Training training(test, *backend);
  training.step();
  Json result = {{"first_step_s", seconds_since(start)},
                 {"init_s", training.init_seconds()},
                 {"plan_bytes", training.plan_bytes()}};
  std::vector<double> losses = {training.loss()};
  std::vector<double> seconds;
  for (int i = 1; i < kWarmup + kSteps; ++i) {
    const double step = training.step();
    losses.push_back(training.loss());
    if (i >= kWarmup) {
      seconds.push_back(step);
    }
  }
  result["seconds"] = seconds;
  result["losses"] = losses;
  if (!test.small) {
    result["used_bytes"] = free_before - free_device_bytes();
    // Recording costs time: after what is timed.
    GpuActivity activity;
    for (int i = 0; i < 3; ++i) {
      training.step();
    }
    if (const auto idle = activity.idle_share()) {
      result["idle"] = *idle;
    } else {
      result["idle_problem"] = activity.problem();
    }
  }
  return result;
}

// The JSON object on the last line that the command prints.
Json output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  TESSERA_REQUIRE(pipe != nullptr, ErrorCode::kDeviceError, "cannot run {}", command);
  std::string last;
  char line[65536];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    last = line;
  }
  TESSERA_REQUIRE(::pclose(pipe) == 0, ErrorCode::kDeviceError, "{} failed", command);
  return Json::parse(last);
}

std::string peer_command(const Case& test, const std::string& script) {
  const char* const python = std::getenv("TESSERA_PYTHON");
  const LlamaConfig& sizes = test.sizes;
  return format(
      "'{}' '{}' --model={} --dim={} --layers={} --heads={} --kv_heads={} --ffn={} --vocab={} "
      "--batch={} --seq={} --steps={} --device={}",
      python == nullptr ? "/usr/bin/python3" : python,
      script,
      test.llama ? "llama3" : "gpt2",
      sizes.dim,
      sizes.layers,
      sizes.heads,
      sizes.kv_heads,
      sizes.ffn,
      sizes.vocab,
      test.batch,
      test.seq,
      kSteps,
      test.small ? "cpu" : "cuda");
}

// All timed steps of one side.
struct Side {
  std::vector<double> seconds;
  Json last;

  void add(const Json& result) {
    const auto added = result.at("seconds").get<std::vector<double>>();
    seconds.insert(seconds.end(), added.begin(), added.end());
    last = result;
  }
};

void print_side(const char* name, const Case& test, const Side& side) {
  std::printf("  %-8s %10.0f tokens/s   median step %.4f s   losses %.3f .. %.3f\n",
              name,
              test.tokens() / median(side.seconds),
              median(side.seconds),
              side.last.at("losses").front().get<double>(),
              side.last.at("losses").back().get<double>());
}

void print_own_facts(const Case& test, const Json& own) {
  const auto plan = own.at("plan_bytes").get<std::int64_t>();
  std::printf(
      "  start to the end of the first step: %.2f s, of which %.2f s initial weights   "
      "target 3 s and weights\n",
      own.at("first_step_s").get<double>(),
      own.at("init_s").get<double>());
  if (own.contains("used_bytes")) {
    const auto used = own.at("used_bytes").get<std::int64_t>();
    std::printf("  device memory: %s, the plan says %s: %+.2f %%   target within 1 %%\n",
                format_bytes(used).c_str(),
                format_bytes(plan).c_str(),
                100 * (static_cast<double>(used) / static_cast<double>(plan) - 1));
  }
  if (own.contains("idle")) {
    const std::string target =
        test.idle_target > 0 ? format("   target {:.0f} %", 100 * test.idle_target) : "";
    std::printf("  GPU idle within three steps: %.2f %%%s\n",
                100 * own.at("idle").get<double>(),
                target.c_str());
  } else if (own.contains("idle_problem")) {
    std::printf("  GPU idle: not measured: %s\n",
                own.at("idle_problem").get<std::string>().c_str());
  }
}

void run_case(const Case& test, const std::string& self, const std::string& peer, int rounds) {
  std::printf("%s: batch %ld, sequence %ld, bf16, f32 masters and moments, no recompute%s%s\n",
              test.name.c_str(),
              static_cast<long>(test.batch),
              static_cast<long>(test.seq),
              test.note.empty() ? "" : "; ",
              test.note.c_str());
  Side own;
  Side other;
  for (int round = 0; round < rounds; ++round) {
    own.add(output_of(format("'{}' --own={}", self, test.name)));
    if (!test.beside.empty()) {
      other.add(output_of(format("'{}' --own={}", self, test.beside)));
    } else if (!peer.empty()) {
      other.add(output_of(peer_command(test, peer)));
    }
  }
  print_side("tessera", test, own);
  if (!test.beside.empty()) {
    print_side(test.beside.c_str(), test, other);
    std::printf(
        "  ratio %.3f   target %.2f\n", median(other.seconds) / median(own.seconds), test.target);
  } else if (!peer.empty()) {
    print_side("pytorch", test, other);
    std::printf("  PyTorch %s, attention %s, peak memory %s\n",
                other.last.at("torch").get<std::string>().c_str(),
                other.last.at("attention").get<std::string>().c_str(),
                format_bytes(other.last.at("peak_bytes").get<std::int64_t>()).c_str());
    const std::string stretch = test.stretch > 0 ? format(", stretch {:.2f}", test.stretch) : "";
    std::printf("  ratio %.3f   target %.2f%s\n",
                median(other.seconds) / median(own.seconds),
                test.target,
                stretch.c_str());
  }
  print_own_facts(test, own.last);
}

struct Options {
  std::string only;
  std::string own;
  std::string peer;
  int rounds = 2;
  bool on_cpu = false;
};

Options parse(std::span<char*> arguments) {
  Options options;
  for (const std::string_view argument : arguments.subspan(1)) {
    const std::size_t equals = argument.find('=');
    const std::string_view key = argument.substr(0, equals);
    const std::string value(argument.substr(std::min(equals, argument.size() - 1) + 1));
    if (key == "--case") {
      options.only = value;
    } else if (key == "--own") {
      options.own = value;
    } else if (key == "--peer") {
      options.peer = value;
    } else if (key == "--rounds") {
      options.rounds = std::atoi(value.c_str());
    } else if (argument == "--device=cpu") {
      options.on_cpu = true;
    } else {
      fail(ErrorCode::kInvalidConfig,
           "{}: expected --case=NAME, --own=NAME, --peer=SCRIPT, --rounds=N or --device=cpu",
           argument);
    }
  }
  return options;
}

void run_benchmarks(std::span<char*> arguments, Clock::time_point start) {
  const Options options = parse(arguments);
  const bool small = options.on_cpu || options.own.starts_with("small");
  const std::string problem = small ? "" : find_devices().problem;
  TESSERA_REQUIRE(problem.empty(), ErrorCode::kInvalidConfig, "no GPU to measure: {}", problem);
  for (const Case& test : cases()) {
    if (!options.own.empty()) {
      if (test.name == options.own) {
        std::printf("%s\n", run_own(test, start).dump().c_str());
      }
    } else if (test.small == small && (options.only.empty() || options.only == test.name)) {
      run_case(test, arguments[0], options.peer, options.rounds);
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  const auto start = std::chrono::steady_clock::now();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tessera::run_benchmarks({argv, static_cast<std::size_t>(argc)}, start);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
