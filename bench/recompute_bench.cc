// What memory.recompute = "auto" chooses, beside the best of all combinations of what four layers
// may keep, at random limits, and how long it takes to choose; and what recomputing costs: the time
// of a step and its memory where all is kept, "selective", "full" and at limits in between.
//
// usage: recompute_bench [--layers=N] [--ways=N] [--limits=N] [--rounds=N]
//
// `ways`: how many of what each layer may keep are combined.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/own_training.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/format.h"
#include "tessera/base/median.h"
#include "tessera/base/units.h"
#include "tessera/resolve/choose_memory.h"
#include "tessera/resolve/choose_states.h"
#include "tessera/resolve/recompute_rules.h"
#include "tessera/resolve/test_recompute.h"

namespace tessera {
namespace {

// `store_seconds`: of a byte that is stored and fetched, beside which layers compute; none: nothing
// is stored.
void choices_of_small_layers(std::int64_t layers,
                             std::int64_t ways,
                             std::int64_t limits,
                             std::optional<double> store_seconds) {
  std::vector<std::string> keys = {format("--model.layers={}", layers), "--train.microbatch=2"};
  if (store_seconds) {
    keys.emplace_back("--memory.offload_activations=auto");
  }
  const MoveRates rates = {.disk = 2.0 * kUnhiddenPart / store_seconds.value_or(1.0)};
  const PlannedRun run = small_run(keys);
  const std::vector<RecomputeOutcome> all =
      all_outcomes(run, static_cast<std::size_t>(ways), store_seconds);
  const auto [least, most] = std::ranges::minmax(all, {}, &RecomputeOutcome::bytes);
  std::mt19937_64 random(11);
  double worst = 0.0;
  std::int64_t num_over = 0;
  std::int64_t num_missed = 0;
  std::vector<double> seconds;
  for (std::int64_t tried = 0; tried < limits; ++tried) {
    const std::int64_t limit =
        least.bytes +
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most.bytes - least.bytes));
    PlannedRun fitted = run;
    RunPrograms programs = compile_run(run.plan, run.target);
    const auto start = std::chrono::steady_clock::now();
    const std::optional<ChosenMemory> found =
        fit_memory(fitted, programs, {}, {.limit = limit, .rates = rates});
    seconds.push_back(seconds_since(start));
    const double best = best_within(all, limit);
    const double over = (1.0 + (found ? found->added() : 0.0)) / (1.0 + best) - 1.0;
    worst = std::max(worst, over);
    num_missed += over > 0.02 ? 1 : 0;
    num_over += run_memory(fitted, programs).total() > limit ? 1 : 0;
    if (over > 0.02) {
      std::printf("  %ld of %ld bytes: adds %.4f, best %.4f: %s\n",
                  static_cast<long>(limit - least.bytes),
                  static_cast<long>(most.bytes - least.bytes),
                  found ? found->added() : 0.0,
                  best,
                  to_string(fitted.plan.passes.recompute).c_str());
    }
  }
  std::printf(
      "%ld layers, %zu combinations%s, %ld limits: step over the best of all, at most %.2f %%   "
      "target 2; more than that %ld; over the limit %ld   target 0; median to choose %.1f ms   "
      "target 50\n",
      static_cast<long>(layers),
      all.size(),
      store_seconds ? " that store, too" : "",
      static_cast<long>(limits),
      100.0 * worst,
      static_cast<long>(num_missed),
      static_cast<long>(num_over),
      1e3 * median(seconds));
}

// `keys`: of the run file, beside memory.recompute = "auto".
void time_of_choosing(const std::string& name, const std::vector<std::string>& keys) {
  RunConfig config = load_run_config(TESSERA_SOURCE_DIR "/configs/recipes/llama3-8b.toml");
  for (const std::string_view text : {"--parallel.ranks=64", "--memory.recompute=auto"}) {
    apply_override(config, std::string(text));
  }
  for (const std::string& key : keys) {
    apply_override(config, key);
  }
  config = resolve(std::move(config), ConfigUse::kPlan);
  const PlannedRun run = plan_run(config, resolve_model(config));
  const RunPrograms programs = compile_run(run.plan, run.target);
  std::vector<double> seconds;
  for (const std::int64_t gigabytes : {36, 40, 44, 48, 52, 56}) {
    PlannedRun fitted = run;
    RunPrograms own = programs;
    const auto start = std::chrono::steady_clock::now();
    fit_memory(fitted, own, {}, {.limit = gigabytes * 1'000'000'000, .on_device = true});
    seconds.push_back(seconds_since(start));
  }
  std::printf("32 layers of 8 B, %s: median to choose %.3f s, most %.3f s   target 0.5\n",
              name.c_str(),
              median(seconds),
              std::ranges::max(seconds));
}

// A model whose steps are timed with all rules in turn.
struct Timed {
  std::string name;
  RecomputeRules rules;
  double repeated = 0.0;  // where it was chosen: by what is known of a usual core
  std::unique_ptr<OwnTraining> training = nullptr;
  std::vector<double> seconds = {};
};

void steps(std::int64_t rounds) {
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kSequence = 512;
  constexpr int kThreads = 2;
  const LlamaConfig model = {
      .dim = 512, .layers = 8, .heads = 8, .kv_heads = 8, .ffn = 1408, .vocab = 4096};
  const PlannedRun run = small_run({"--model.dim=512",
                                    "--model.layers=8",
                                    "--model.heads=8",
                                    "--model.kv_heads=8",
                                    "--model.ffn=1408",
                                    "--model.vocab=4096",
                                    format("--data.sequence_length={}", kSequence),
                                    format("--train.global_batch={}", kBatch),
                                    format("--train.microbatch={}", kBatch),
                                    "--checkpoint.async=false",
                                    format("--run.threads={}", kThreads)});
  std::vector<Timed> timed;
  timed.push_back({.name = "none", .rules = {}});
  timed.push_back({.name = "selective", .rules = {{.kept = RecomputeKept::kAllButCheap}}});
  timed.push_back({.name = "full", .rules = recompute_all()});
  const RunPrograms programs = compile_run(run.plan, run.target);
  const std::int64_t all = run_memory(run, programs).total();
  PlannedRun least = run;
  least.plan.passes.recompute = recompute_all();
  const std::int64_t full = run_memory(least, compile_run(least.plan, run.target)).total();
  for (const int quarter : {1, 2, 3}) {
    PlannedRun fitted = run;
    RunPrograms own = programs;
    const std::optional<ChosenMemory> found =
        fit_memory(fitted, own, {}, {.limit = full + (all - full) * quarter / 4});
    timed.push_back({.name = format("{} / 4", quarter),
                     .rules = fitted.plan.passes.recompute,
                     .repeated = found ? found->repeated : 0.0});
  }
  for (Timed& each : timed) {
    each.training =
        std::make_unique<OwnTraining>(model, kBatch, kSequence, DType::kF32, kThreads, each.rules);
    each.training->step();
  }
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (Timed& each : timed) {
      each.seconds.push_back(each.training->step());
    }
  }
  const double none_seconds = median(timed[0].seconds);
  const double full_seconds = median(timed[2].seconds);
  const auto bytes_of = [](const Timed& each) {
    return static_cast<double>(each.training->program().arena_bytes);
  };
  std::printf(
      "8 layers of width 512, f32: a step where all is kept %.3f s; over it, beside the line from "
      "none to full, and what was predicted\n",
      none_seconds);
  for (const Timed& each : timed) {
    const double saved =
        (bytes_of(timed[0]) - bytes_of(each)) / (bytes_of(timed[0]) - bytes_of(timed[2]));
    const std::string predicted =
        each.repeated > 0.0 ? format("   predicted {:.3f}", 1.0 + each.repeated) : "";
    std::printf("  %-10s %10s  %5.1f %% of the bytes saved   %.3f   line %.3f%s\n",
                each.name.c_str(),
                format_bytes(each.training->program().arena_bytes).c_str(),
                100.0 * saved,
                median(each.seconds) / none_seconds,
                1.0 + saved * (full_seconds / none_seconds - 1.0),
                predicted.c_str());
  }
}

void run_benchmark(std::span<char*> arguments) {
  std::int64_t layers = 4;
  std::int64_t ways = 12;
  std::int64_t limits = 50;
  std::int64_t rounds = 9;
  for (const std::string_view argument : arguments.subspan(1)) {
    for (const auto& [name, value] : {std::pair("--layers=", &layers),
                                      {"--ways=", &ways},
                                      {"--limits=", &limits},
                                      {"--rounds=", &rounds}}) {
      if (argument.starts_with(name)) {
        *value = std::max(2, std::atoi(argument.data() + std::string_view(name).size()));
      }
    }
  }
  choices_of_small_layers(layers, ways, limits, std::nullopt);
  constexpr double kStoreSeconds = 1e-10;
  choices_of_small_layers(layers, ways, limits, kStoreSeconds);
  time_of_choosing("recompute", {});
  time_of_choosing("recompute and offload",
                   {"--memory.offload_optimizer=auto",
                    "--memory.offload_parameters=auto",
                    "--memory.offload_activations=auto",
                    "--memory.offload_to=host"});
  steps(rounds);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tessera::run_benchmark({argv, static_cast<std::size_t>(argc)});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
