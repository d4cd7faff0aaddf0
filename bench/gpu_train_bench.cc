// Training on one GPU beside PyTorch, float8 beside our own bf16: each case as processes that take
// turns (A B A B), since two models of this size do not fit side by side. Prints tokens/s, the
// ratio of the medians, the share of what the GPU's products reach, how long the GPU was idle, the
// time to the first step, and memory beside the plan; in the end each target, and whether it is
// met.
//
// usage: gpu_train_bench [--case=NAME] [--peer=SCRIPT] [--rounds=N] [--steps=N] [--seconds=N]
//                       [--device=cpu] [--gradients=f32]
//        gpu_train_bench --own=NAME [--activity] [--recompute] [--any-order]
//                              [--gelu-apart]
//                                    one process of ours; prints a JSON object
//        gpu_train_bench --ceilings  what the GPU can do, as a JSON object
//   --peer      bench/peers/torch_llama_gpu.py; without it PyTorch is left out
//   --gradients f32 keeps gradients of products in f32; else they are bf16, but in float8-loss
//   --steps     of float8-loss (default: 1000)
//   --seconds   that all cases take at most on a GPU (default: 520)
//   --device    cpu runs small cases there, and float8-loss if named: to try the program itself
//   --activity  records what the GPU does, which takes time, and times nothing
//   --recompute recomputes layers where a case may (default: where a GPU is too small without)
//   --any-order sums attention's gradients in any order
//   --gelu-apart has kernels for gelu, else products apply it on a GPU

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "bench/child_process.h"
#include "bench/gpu_ceilings.h"
#include "bench/gpu_losses.h"
#include "bench/gpu_train_case.h"
#include "bench/gpu_training.h"
#include "tessera/backend/devices.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

// Targets that all cases have.
constexpr double kFirstStepSeconds = 3;  // and the time of initial weights
constexpr double kMemoryShare = 0.01;    // of the plan
constexpr double kLossShare = 0.005;     // float8's off bf16's

constexpr double kSecondsOnCpu = 86400;

struct Options {
  std::string only;
  std::string own;
  std::string peer;
  int rounds = 2;
  int steps = 1000;
  int seconds = 520;  // on a GPU, so that each case says what became of it
  bool on_cpu = false;
  bool f32_gradients = false;
  bool records_activity = false;
  bool recompute = false;
  bool any_order = false;
  bool gelu_apart = false;
  bool measures_ceilings = false;
};

std::string peer_command(const Case& test, const std::string& script) {
  const char* const python = std::getenv("TESSERA_PYTHON");
  return format("'{}' '{}' {}",
                python == nullptr ? "/usr/bin/python3" : python,
                script,
                peer_arguments(test));
}

// All timed steps of one side.
struct Side {
  std::vector<double> seconds;
  Json last;

  // One turn, which it prints at once: where time runs out, what was measured is there.
  void add(const char* name, const Json& result) {
    const auto added = result.at("seconds").get<std::vector<double>>();
    std::printf("  turn of %s: median step %.4f s\n", name, median(added));
    seconds.insert(seconds.end(), added.begin(), added.end());
    last = result;
  }
};

// Runs cases as processes and keeps what became of the targets. It uses no GPU itself, whose memory
// is theirs.
class Session {
 public:
  Session(std::string self, Options options, Clock::time_point start)
      : self_(std::move(self)), options_(std::move(options)), start_(start) {
    if (!options_.on_cpu) {
      const Json found = output_of(format("'{}' --ceilings", self_), seconds_left());
      product_flop_per_s_ = found.at("product_flop_per_s");
      device_bytes_ = found.at("device_bytes");
      std::printf(
          "ceilings: %.0f TFLOP/s (8192^3, bf16), %.0f GB/s (copy)\n"
          "FLOP of a model are in TorchTitan's convention: 6 for each parameter that is "
          "multiplied, "
          "attention without a discount for being causal\n",
          product_flop_per_s_ / 1e12,
          found.at("copy_bytes_per_s").get<double>() / 1e9);
    }
  }

  // Whether it could be measured.
  bool run(Case test) {
    const std::size_t first = targets_.size();
    test.recompute =
        test.whole_gb > 0 && (options_.recompute || device_bytes_ < test.whole_gb * 1e9);
    const bool is_measured = compare(test);
    for (const Target& each : std::span(targets_).subspan(first)) {
      print(each);
    }
    return is_measured;
  }

  void print_targets() const {
    if (!targets_.empty()) {
      std::printf("targets:\n");
    }
    for (const Target& each : targets_) {
      print(each);
    }
  }

 private:
  struct Target {
    std::string text;
    std::optional<bool> is_met;  // nothing: not measured
  };

  static void print(const Target& target) {
    const char* const met = target.is_met ? (*target.is_met ? "met" : "missed") : "not measured";
    std::printf("  %-12s  %s\n", met, target.text.c_str());
  }

  int seconds_left() const {
    const double passed = std::chrono::duration<double>(Clock::now() - start_).count();
    return static_cast<int>((options_.on_cpu ? kSecondsOnCpu : options_.seconds) - passed);
  }

  bool compare(const Case& test) {
    try {
      if (test.compares_loss) {
        compare_losses(test);
      } else {
        compare_speeds(test);
      }
      return true;
    } catch (const std::exception& error) {
      std::printf("  failed: %s\n", error.what());
      targets_.push_back({.text = format("{}: failed", test.name), .is_met = {}});
      return false;
    }
  }

  // Of the case, or of the one beside it.
  Json own(const Case& test, const std::string& name, const char* more = "") const {
    return output_of(format("'{}' --own={} --steps={}{}{}{} {}",
                            self_,
                            name,
                            options_.steps,
                            options_.on_cpu ? " --device=cpu" : "",
                            options_.f32_gradients ? " --gradients=f32" : "",
                            test.recompute ? " --recompute" : "",
                            more),
                     seconds_left());
  }

  void compare_speeds(const Case& test) {
    const std::string rows = test.document == 0
                                 ? "one document a row"
                                 : format("documents of {} tokens", format_grouped(test.document));
    std::printf(
        "%s: batch %ld, sequence %ld, %s, bf16, f32 masters and moments, logits in bf16, gradients "
        "of products in "
        "%s, %s%s%s\n",
        test.name.c_str(),
        static_cast<long>(test.batch),
        static_cast<long>(test.seq),
        rows.c_str(),
        test.round_gradients ? "bf16" : "f32",
        test.recompute ? "layers recomputed, by both sides" : "no recompute",
        test.note.empty() ? "" : "; ",
        test.note.c_str());
    Side ours;
    std::vector<Side> variants(test.also.size());
    Side other;
    for (int round = 0; round < options_.rounds; ++round) {
      const int before = seconds_left();
      if (round > 0 && before < last_round_) {
        std::printf(
            "  %d of %d rounds: for another one too little time is left\n", round, options_.rounds);
        break;
      }
      ours.add("tessera", own(test, test.name));
      for (std::size_t i = 0; i < variants.size(); ++i) {
        variants[i].add(test.also[i].name, own(test, test.name, test.also[i].option));
      }
      add_other(test, other);
      last_round_ = before - seconds_left();
    }
    const double flop_per_token = ours.last.at("flop_per_token");
    print_side("tessera", test, ours, flop_per_token);
    for (std::size_t i = 0; i < variants.size(); ++i) {
      print_side(test.also[i].name, test, variants[i], flop_per_token);
    }
    if (!other.seconds.empty()) {
      const char* const name = test.beside.empty() ? "pytorch" : test.beside.c_str();
      print_side(name, test, other, flop_per_token);
    }
    if (!other.seconds.empty() && test.beside.empty()) {
      std::printf("  PyTorch %s, attention %s, peak memory %s\n",
                  other.last.at("torch").get<std::string>().c_str(),
                  other.last.at("attention").get<std::string>().c_str(),
                  format_bytes(other.last.at("peak_bytes").get<std::int64_t>()).c_str());
    }
    print_ratio(test, "", ours, other);
    for (std::size_t i = 0; i < variants.size(); ++i) {
      print_ratio(test, format(", {}", test.also[i].text), variants[i], other);
    }
    print_first_step(test, ours.last);
    if (!test.small) {
      print_memory(test, ours.last);
      print_idle(test, activity(test));
    }
  }

  // One turn of the other side, where there is one: what PyTorch fails with costs no figure of
  // ours.
  void add_other(const Case& test, Side& other) const {
    if (!test.beside.empty()) {
      other.add(test.beside.c_str(), own(test, test.beside));
    } else if (!options_.peer.empty()) {
      try {
        other.add("pytorch", output_of(peer_command(test, options_.peer), seconds_left()));
      } catch (const std::exception& error) {
        std::printf("  no turn of PyTorch: %s\n", error.what());
      }
    }
  }

  Json activity(const Case& test) const {
    try {
      return own(test, test.name, "--activity");
    } catch (const std::exception& error) {
      return {{"problem", error.what()}};
    }
  }

  void print_side(const char* name, const Case& test, const Side& side, double flop_per_token) {
    const double tokens_per_s = test.tokens() / median(side.seconds);
    const double flop_per_s = tokens_per_s * flop_per_token;
    const std::string share =
        product_flop_per_s_ > 0
            ? format(", {:.1f} % of the ceiling", 100 * flop_per_s / product_flop_per_s_)
            : "";
    std::printf(
        "  %-12s %10.0f tokens/s   median step %.4f s   %.3g TFLOP/s%s   losses %.3f .. %.3f\n",
        name,
        tokens_per_s,
        median(side.seconds),
        flop_per_s / 1e12,
        share.c_str(),
        side.last.at("losses").front().get<double>(),
        side.last.at("losses").back().get<double>());
  }

  void print_ratio(const Case& test, const std::string& how, const Side& ours, const Side& other) {
    const std::string peer = test.beside.empty() ? "PyTorch" : test.beside;
    const std::string what = format("{}{}: tokens/s over those of {}", test.name, how, peer);
    const std::string target = format("at least {:.2f}", test.target);
    if (other.seconds.empty()) {
      if (test.target > 0) {
        targets_.push_back({.text = format("{}, {}", what, target), .is_met = {}});
      }
      return;
    }
    const double ratio = median(other.seconds) / median(ours.seconds);
    const std::string stretch = test.stretch > 0 ? format(", stretch {:.2f}", test.stretch) : "";
    std::printf("  ratio %.3f%s%s%s%s\n",
                ratio,
                how.c_str(),
                test.target > 0 ? "   target " : "",
                test.target > 0 ? target.c_str() : "",
                stretch.c_str());
    if (test.target > 0) {
      targets_.push_back({.text = format("{} {:.3f}, {}{}", what, ratio, target, stretch),
                          .is_met = ratio >= test.target});
    }
  }

  void print_first_step(const Case& test, const Json& result) {
    const double seconds = result.at("first_step_s");
    const double init = result.at("init_s");
    std::printf(
        "  first step done %.2f s after this benchmark's process began, of which %.2f s initial "
        "weights; the rest is compilation, loading of kernels, choice of products, the step "
        "itself, and no data or tokenizer of a run   target %.0f s and weights\n",
        seconds,
        init,
        kFirstStepSeconds);
    if (!test.small) {
      targets_.push_back(
          {.text = format("{}: first step after {:.2f} s without weights, at most {}",
                          test.name,
                          seconds - init,
                          kFirstStepSeconds),
           .is_met = seconds - init <= kFirstStepSeconds});
    }
  }

  void print_memory(const Case& test, const Json& result) {
    const std::int64_t used = result.at("used_bytes");
    const std::int64_t plan = result.at("plan_bytes");
    const double off = static_cast<double>(used) / static_cast<double>(plan) - 1;
    std::printf(
        "  device memory, the larger of after the first step and after the last: %s, the plan says "
        "%s: %+.2f %%   target within %.0f %%\n"
        "  apart from it, the CUDA context and what others held before: %s\n",
        format_bytes(used).c_str(),
        format_bytes(plan).c_str(),
        100 * off,
        100 * kMemoryShare,
        format_bytes(result.at("context_bytes").get<std::int64_t>()).c_str());
    targets_.push_back({.text = format("{}: memory {:+.2f} % off the plan, within {:.0f} %",
                                       test.name,
                                       100 * off,
                                       100 * kMemoryShare),
                        .is_met = std::abs(off) <= kMemoryShare});
  }

  // Where a step's time goes.
  static void print_kernels(const Json& kernels) {
    constexpr std::size_t kMostLines = 16;
    double rest = 0;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      const double milliseconds = 1e3 * kernels[i][2].get<double>();
      if (i < kMostLines) {
        std::printf("    %9.3f ms of a step  %6.1f times  %.80s\n",
                    milliseconds,
                    kernels[i][1].get<double>(),
                    kernels[i][0].get<std::string>().c_str());
      } else {
        rest += milliseconds;
      }
    }
    if (rest > 0) {
      std::printf("    %9.3f ms of a step by others\n", rest);
    }
  }

  void print_idle(const Case& test, const Json& result) {
    const std::string target =
        test.idle_target > 0 ? format("at most {:.0f} %", 100 * test.idle_target) : "";
    std::string text = format("{}: GPU idle within a step", test.name);
    std::optional<bool> is_met;
    if (result.contains("idle")) {
      const double idle = result.at("idle");
      std::printf("  GPU idle within and between %d steps, by CUPTI: %.2f %%%s%s\n",
                  kRecordedSteps,
                  100 * idle,
                  target.empty() ? "" : "   target ",
                  target.c_str());
      print_kernels(result.at("kernels"));
      text += format(" {:.2f} %", 100 * idle);
      is_met = idle <= test.idle_target;
    } else if (result.contains("idle_between_ops")) {
      const double idle = result.at("idle_between_ops");
      std::printf(
          "  GPU idle between steps, by events: %.2f %%; between ops that are begun one by one, "
          "events among them: %.2f %%%s%s\n"
          "  not measured more closely, since of CUPTI: %s\n",
          100 * result.at("idle_between_steps").get<double>(),
          100 * idle,
          target.empty() ? "" : "   target ",
          target.c_str(),
          result.at("problem").get<std::string>().c_str());
      text += format(" about {:.2f} %, by events", 100 * idle);
    } else {
      std::printf("  GPU idle within a step: not measured: %s\n",
                  result.at("problem").get<std::string>().c_str());
    }
    if (!target.empty()) {
      targets_.push_back({.text = format("{}, {}", text, target), .is_met = is_met});
    }
  }

  void compare_losses(const Case& test) {
    std::printf(
        "%s: a Llama of %ld layers of %ld, batch %ld, sequence %ld, after %d steps on a Markov "
        "chain of order 2 whose entropy is 1.041 nats\n",
        test.name.c_str(),
        static_cast<long>(test.sizes.layers),
        static_cast<long>(test.sizes.dim),
        static_cast<long>(test.batch),
        static_cast<long>(test.seq),
        options_.steps);
    const Json losses = own(test, test.name);
    const double bf16 = losses.at("bf16");
    std::printf("  bf16         mean loss at the end %.4f\n", bf16);
    for (const char* const recipe : {"tensorwise", "rowwise"}) {
      const double loss = losses.at(recipe);
      std::printf(
          "  %-12s mean loss at the end %.4f, %.4f times bf16's   target within %.1f %% "
          "after 1,000 steps\n",
          recipe,
          loss,
          loss / bf16,
          100 * kLossShare);
      if (options_.steps >= 1000) {
        targets_.push_back({.text = format("{}: {} {:.4f} times bf16's, within {:.1f} %",
                                           test.name,
                                           recipe,
                                           loss / bf16,
                                           100 * kLossShare),
                            .is_met = std::abs(loss / bf16 - 1) <= kLossShare});
      }
    }
  }

  std::string self_;
  Options options_;
  Clock::time_point start_;
  double product_flop_per_s_ = 0;
  double device_bytes_ = 0;
  int last_round_ = 0;  // seconds
  std::vector<Target> targets_;
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
      options.rounds = std::max(1, std::atoi(value.c_str()));
    } else if (key == "--steps") {
      options.steps = std::max(1, std::atoi(value.c_str()));
    } else if (key == "--seconds") {
      options.seconds = std::max(1, std::atoi(value.c_str()));
    } else if (argument == "--device=cpu") {
      options.on_cpu = true;
    } else if (argument == "--gradients=f32") {
      options.f32_gradients = true;
    } else if (argument == "--activity") {
      options.records_activity = true;
    } else if (argument == "--recompute") {
      options.recompute = true;
    } else if (argument == "--any-order") {
      options.any_order = true;
    } else if (argument == "--gelu-apart") {
      options.gelu_apart = true;
    } else if (argument == "--ceilings") {
      options.measures_ceilings = true;
    } else {
      fail(ErrorCode::kInvalidConfig,
           "{}: expected --case=NAME, --peer=SCRIPT, --rounds=N, --steps=N, --seconds=N, "
           "--device=cpu, --gradients=f32, --recompute, --any-order, --gelu-apart, --own=NAME, "
           "--activity or "
           "--ceilings",
           argument);
    }
  }
  return options;
}

std::vector<Case> cases_of(const Options& options) {
  std::vector<Case> all = cases();
  for (Case& test : all) {
    test.round_gradients = test.round_gradients && !options.f32_gradients;
    test.recompute = options.recompute && test.whole_gb > 0;
    test.any_order = options.any_order;
    test.gelu_products = !options.gelu_apart;
  }
  return all;
}

bool is_chosen(const Case& test, const Options& options) {
  if (options.only.empty()) {
    return test.small == options.on_cpu && !test.only_named;
  }
  return test.name == options.only && (test.small == options.on_cpu || test.compares_loss);
}

Json ceilings() {
  const std::string problem = find_devices().problem;
  TESSERA_REQUIRE(problem.empty(), ErrorCode::kInvalidConfig, "no GPU to measure: {}", problem);
  const Ceilings found = measure_ceilings();
  return {{"product_flop_per_s", found.product_flop_per_s},
          {"copy_bytes_per_s", found.copy_bytes_per_s},
          {"device_bytes", device_bytes()}};
}

// What a process does that was started for one thing.
Json run_part(const Options& options, Clock::time_point start) {
  if (options.measures_ceilings) {
    return ceilings();
  }
  for (const Case& test : cases_of(options)) {
    const bool on_cpu = options.on_cpu || test.small;
    if (test.name == options.own && test.compares_loss) {
      return run_losses(test, options.steps, on_cpu);
    }
    if (test.name == options.own) {
      return options.records_activity ? run_activity(test) : run_own(test, on_cpu, start);
    }
  }
  fail(ErrorCode::kInvalidConfig, "--own={}: there is no such case", options.own);
}

// When this process began, before its libraries were loaded: the kernel says it since the machine's
// start, in ticks.
Clock::time_point process_start() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  constexpr int kStart = 20;  // after the name
  for (int i = 0; i < kStart; ++i) {
    fields >> field;
  }
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const double began =
      std::strtod(field.c_str(), nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  const double passed =
      static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - began;
  return Clock::now() -
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(passed));
}

// Whether all could be measured.
bool run_benchmarks(std::span<char*> arguments, Clock::time_point start) {
  const Options options = parse(arguments);
  if (options.measures_ceilings || !options.own.empty()) {
    std::printf("%s\n", run_part(options, start).dump().c_str());
    return true;
  }
  std::vector<Case> chosen;
  std::string names;
  for (const Case& test : cases_of(options)) {
    names += (names.empty() ? "" : ", ") + test.name;
    if (is_chosen(test, options)) {
      chosen.push_back(test);
    }
  }
  TESSERA_REQUIRE(!chosen.empty(),
                  ErrorCode::kInvalidConfig,
                  "--case={}: expected one of {}, on a CPU small ones and float8-loss",
                  options.only,
                  names);
  Session session(arguments[0], options, start);
  bool is_whole = true;
  for (const Case& test : chosen) {
    is_whole = session.run(test) && is_whole;
  }
  session.print_targets();
  return is_whole;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  const auto start = tessera::process_start();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return tessera::run_benchmarks({argv, static_cast<std::size_t>(argc)}, start) ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
