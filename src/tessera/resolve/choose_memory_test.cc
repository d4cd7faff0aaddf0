#include "tessera/resolve/choose_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/resolve/choose_states.h"
#include "tessera/resolve/memory_choice.h"
#include "tessera/resolve/recompute_rules.h"
#include "tessera/resolve/test_recompute.h"

namespace tessera {
namespace {

std::int64_t bytes_of(const PlannedRun& run, const RunPrograms& programs) {
  return run_memory(run, programs).total();
}

// What is chosen fits in any limit that anything fits in, and takes at most 2 % more than the best
// of all combinations of so many choices of each layer. `store_seconds`: as ChoiceOptions.
void expect_as_good_as_all(const PlannedRun& run,
                           std::size_t ways,
                           std::optional<double> store_seconds) {
  const std::vector<RecomputeOutcome> all = all_outcomes(run, ways, store_seconds);
  const double disk = 2.0 * kUnhiddenPart / store_seconds.value_or(1.0);
  const auto [least, most] = std::ranges::minmax(all, {}, &RecomputeOutcome::bytes);
  std::mt19937_64 random(11);
  for (int tried = 0; tried < 50; ++tried) {
    const std::int64_t limit =
        least.bytes +
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most.bytes - least.bytes));
    SCOPED_TRACE(limit);
    const double best = best_within(all, limit);
    PlannedRun fitted = run;
    RunPrograms programs = compile_run(run.plan, run.target);
    const std::optional<ChosenMemory> found =
        fit_memory(fitted, programs, {}, {.limit = limit, .rates = {.disk = disk}});
    if (!found) {
      EXPECT_LE(bytes_of(run, programs), limit);
      continue;
    }
    EXPECT_LE(found->bytes, limit);
    EXPECT_EQ(found->bytes, bytes_of(fitted, compile_run(fitted.plan, fitted.target)));
    EXPECT_LE(1.0 + found->added(), 1.02 * (1.0 + best));
  }
}

TEST(FitMemory, IsAsGoodAsTheBestOfAll) {
  expect_as_good_as_all(small_run({"--model.layers=3", "--train.microbatch=2"}), 8, std::nullopt);
}

TEST(FitMemory, StoresAsWellAsTheBestOfAll) {
  constexpr double kStoreSeconds = 1e-10;
  expect_as_good_as_all(
      small_run({"--model.layers=4", "--train.microbatch=2", "--memory.offload_activations=auto"}),
      6,
      kStoreSeconds);
}

std::int64_t bytes_in_files(const RunPrograms& programs, Category category) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : programs[0].step.buffers) {
    bytes += buffer.space == Space::kFile && buffer.category == category ? buffer.bytes : 0;
  }
  return bytes;
}

// As many states as have no room, and hardly more; parameters as far as that is not enough.
TEST(FitMemory, MovesNoMoreStatesThanHaveNoRoom) {
  const PlannedRun run = small_run({"--model.layers=4",
                                    "--model.dim=64",
                                    "--memory.recompute=none",
                                    "--memory.offload_optimizer=auto",
                                    "--memory.offload_parameters=auto"});
  const RunPrograms programs = compile_run(run.plan, run.target);
  PlannedRun most = run;
  most.plan.passes.optimizer = most.plan.passes.parameters = Space::kFile;
  most.saves_in_background = false;
  const RunPrograms moved = compile_run(most.plan, run.target);
  const std::int64_t all = bytes_of(run, programs);
  const std::int64_t least = bytes_of(most, moved);
  const std::int64_t optimizer = bytes_in_files(moved, Category::kOptimizer);
  constexpr int kParts = 12;
  for (int part = 0; part < kParts; ++part) {
    const std::int64_t limit = least + (all - least) / kParts * part;
    SCOPED_TRACE(limit);
    PlannedRun fitted = run;
    RunPrograms own = programs;
    ASSERT_TRUE(fit_memory(fitted, own, {}, {.limit = limit}));
    EXPECT_EQ(bytes_of(fitted, own), bytes_of(fitted, compile_run(fitted.plan, run.target)));
    EXPECT_LE(bytes_of(fitted, own), limit);
    EXPECT_FALSE(fitted.saves_in_background);
    const std::int64_t here = bytes_in_files(own, Category::kOptimizer);
    const std::int64_t parameters = bytes_in_files(own, Category::kParameter);
    EXPECT_TRUE(here == optimizer || parameters == 0) << here << " " << parameters;
    if (part == 0) {
      EXPECT_EQ(here, optimizer);
    }
  }
}

// Whatever all of it would fit in, some of it does: over layouts and kinds, also beside a
// validation.
TEST(FitMemory, FitsWhereverAllOfItWould) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--model.layers=1"},
           {"--model.layers=5", "--train.microbatch=2"},
           {"--model.vocab=2048", "--validation.every=1"},
           {"--parallel.ranks=2", "--parallel.tensor=2", "--train.microbatch=4"},
           {"--parallel.ranks=2", "--state.preset=zero1", "--train.microbatch=2"},
           {"--parallel.ranks=2", "--state.preset=fsdp", "--train.dtype=bf16"},
           {"--parallel.ranks=2", "--parallel.pipeline=2", "--train.microbatch=1"},
           {"--parallel.ranks=2",
            "--parallel.pipeline=2",
            "--train.microbatch=1",
            "--pipeline.schedule=zb-h1"}}) {
    std::vector<std::string> keys = {"--model.layers=4",
                                     "--model.dim=64",
                                     "--train.global_batch=8",
                                     "--memory.offload_optimizer=auto",
                                     "--memory.offload_parameters=auto",
                                     "--memory.offload_activations=auto"};
    keys.insert(keys.end(), more.begin(), more.end());
    SCOPED_TRACE(::testing::PrintToString(more));
    const PlannedRun run = small_run(keys);
    PlannedRun most = run;
    PassPlan& passes = most.plan.passes;
    passes.optimizer = passes.parameters = passes.activations = Space::kFile;
    passes.recompute = recompute_all();
    most.saves_in_background = false;
    const RunPrograms programs = compile_run(run.plan, run.target);
    const std::int64_t all = bytes_of(run, programs);
    const std::int64_t least = bytes_of(most, compile_run(most.plan, most.target));
    constexpr int kParts = 6;
    for (int part = 1; part < kParts; ++part) {
      const std::int64_t limit = least + (all - least) / kParts * part;
      PlannedRun fitted = run;
      RunPrograms own = programs;
      const auto found = fit_memory(
          fitted, own, {}, {.limit = limit, .rates = {.disk = part % 2 == 0 ? 1e8 : 1e10}});
      ASSERT_TRUE(found);
      EXPECT_LE(found->bytes, limit) << part;
      EXPECT_EQ(found->bytes, bytes_of(fitted, compile_run(fitted.plan, fitted.target)));
    }
  }
}

// To the host's memory, which is none of the device's.
TEST(FitMemory, MovesToTheHostOfADevice) {
  PlannedRun run = small_run({"--model.layers=4",
                              "--model.dim=64",
                              "--memory.offload_optimizer=auto",
                              "--memory.offload_activations=auto",
                              "--memory.offload_to=host"});
  run.target = find_target("h200");
  RunPrograms programs = compile_run(run.plan, run.target);
  PlannedRun most = run;
  most.plan.passes.optimizer = most.plan.passes.activations = Space::kHost;
  const std::int64_t all = bytes_of(run, programs);
  const std::int64_t least = bytes_of(most, compile_run(most.plan, most.target));
  ASSERT_LT(least, all);
  const std::int64_t limit = (least + all) / 2;
  ASSERT_TRUE(fit_memory(run, programs, {}, {.limit = limit, .on_device = true}));
  EXPECT_LE(bytes_of(run, programs), limit);
  EXPECT_GT(programs[0].step.host_bytes, 0);
  EXPECT_EQ(programs[0].step.file_bytes, 0);
}

// What another key says stays as it is.
TEST(FitMemory, ChoosesWhatIsAutoAlone) {
  for (const char* const recompute : {"full", "selective", "none"}) {
    PlannedRun run = small_run({"--model.layers=16",
                                "--train.microbatch=4",
                                "--data.sequence_length=128",
                                format("--memory.recompute={}", recompute),
                                "--memory.offload_activations=auto"});
    const RecomputeRules rules = run.plan.passes.recompute;
    RunPrograms programs = compile_run(run.plan, run.target);
    const std::int64_t all = bytes_of(run, programs);
    PlannedRun most = run;
    most.plan.passes.activations = Space::kFile;
    const std::int64_t least = bytes_of(most, compile_run(most.plan, run.target));
    ASSERT_LT(least, all) << recompute;
    const std::int64_t limit = (all + least) / 2;
    const auto found = fit_memory(run, programs, {}, {.limit = limit});
    ASSERT_TRUE(found);
    EXPECT_EQ(found->repeated, 0.0);
    EXPECT_LE(bytes_of(run, programs), limit);
    EXPECT_GT(bytes_in_files(programs, Category::kActivation), 0);
    EXPECT_EQ(bytes_in_files(programs, Category::kOptimizer), 0);
    for (const RecomputeRule& rule : run.plan.passes.recompute) {
      EXPECT_EQ(rule.kept, rules.empty() ? RecomputeKept::kAll : rules[0].kept);
    }
  }
}

// With states and what is stored, as a start finds it in config.toml.
class FitMemoryTakes : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(With,
                         FitMemoryTakes,
                         testing::Values("auto", "none", "selective"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(FitMemoryTakes, AnEarlierChoiceOfPlaces) {
  const PlannedRun run = small_run({"--model.layers=4",
                                    "--model.dim=64",
                                    "--train.microbatch=4",
                                    format("--memory.recompute={}", GetParam()),
                                    "--memory.offload_optimizer=auto",
                                    "--memory.offload_parameters=auto",
                                    "--memory.offload_activations=auto"});
  const RunPrograms programs = compile_run(run.plan, run.target);
  const std::int64_t all = bytes_of(run, programs);
  for (const int percent : {95, 80, 60}) {
    const std::int64_t limit = all * percent / 100;
    PlannedRun first = run;
    RunPrograms own = programs;
    ASSERT_TRUE(fit_memory(first, own, {}, {.limit = limit, .rates = {.disk = 1e11}})->search);
    ASSERT_LE(bytes_of(first, own), limit);
    PlannedRun again = run;
    again.chosen_before =
        parse_memory_choice(to_string(choice_of(first, {.all_bytes = all}, limit)));
    RunPrograms taken = programs;
    EXPECT_FALSE(fit_memory(again, taken, {}, {.limit = limit})->search);
    EXPECT_EQ(to_string(again.plan), to_string(first.plan));
    EXPECT_EQ(again.saves_in_background, first.saves_in_background);
  }
}

TEST(FitMemory, LeavesARunThatFits) {
  for (const char* const recompute : {"auto", "full"}) {
    PlannedRun run = small_run({"--model.layers=2", format("--memory.recompute={}", recompute)});
    const RecomputeRules rules = run.plan.passes.recompute;
    RunPrograms programs = compile_run(run.plan, run.target);
    const std::int64_t needed = bytes_of(run, programs);
    EXPECT_FALSE(fit_memory(run, programs, {}, {.limit = needed}));
    EXPECT_EQ(fit_memory(run, programs, {}, {.limit = needed - 1}).has_value(),
              recompute == std::string("auto"));
    EXPECT_EQ(run.plan.passes.recompute == rules, recompute == std::string("full"));
  }
}

// Where nothing fits, what is left is the least.
TEST(FitMemory, EndsAtTheLeast) {
  PlannedRun run = small_run({"--model.layers=3"});
  RunPrograms programs = compile_run(run.plan, run.target);
  const auto found = fit_memory(run, programs, {}, {.limit = 1000});
  ASSERT_TRUE(found && found->search);
  EXPECT_FALSE(found->search->saved_by_gigabyte);
  EXPECT_EQ(found->bytes, found->search->least_bytes);
  EXPECT_EQ(run.plan.passes.recompute, (RecomputeRules{{.first = 0, .end = 3}}));
}

// A start takes what the one before chose, unless that does not fit, or there is much more room.
TEST(FitMemory, TakesAnEarlierChoice) {
  const PlannedRun run = small_run({"--model.layers=3", "--train.microbatch=2"});
  const RunPrograms programs = compile_run(run.plan, run.target);
  const auto fit = [&](std::int64_t limit, std::optional<MemoryChoice> before, bool is_taken) {
    PlannedRun fitted = run;
    fitted.chosen_before = std::move(before);
    RunPrograms own = programs;
    const std::optional<ChosenMemory> found = fit_memory(fitted, own, {}, {.limit = limit});
    EXPECT_EQ(found->search.has_value(), !is_taken);
    EXPECT_LE(found->bytes, limit);
    EXPECT_EQ(found->bytes, bytes_of(fitted, own));
    return std::pair(fitted.plan.passes.recompute, *found);
  };
  const std::int64_t all = bytes_of(run, programs);
  const std::int64_t limit = all - all / 10;
  const auto [rules, chosen] = fit(limit, std::nullopt, false);
  const auto [taken, again] = fit(limit, MemoryChoice{limit, all, rules}, true);
  EXPECT_EQ(taken, rules);
  EXPECT_NEAR(again.repeated, chosen.repeated, 1e-9);
  EXPECT_EQ(again.all_bytes, chosen.all_bytes);
  fit(limit + limit / 25, MemoryChoice{limit, all, rules}, true);
  fit(limit + limit / 15, MemoryChoice{limit, all, rules}, false);
  fit(chosen.bytes, MemoryChoice{limit, all, rules}, true);
  fit(chosen.bytes - 1, MemoryChoice{limit, all, rules}, false);
  fit(limit, MemoryChoice{limit, all + 1, rules}, false);
  fit(limit, MemoryChoice{limit, all, rules, {{.optimizer = 0, .parameters = 0}}}, false);
  RecomputeRules storing = rules;
  storing[0].store = storing[0].keep;
  fit(limit, MemoryChoice{limit, all, storing}, false);
  fit(limit, MemoryChoice{limit, all, {{.first = 0, .end = 4}}}, false);
  fit(limit, MemoryChoice{limit, all, {{.first = 0, .end = 3, .keep = {"no_such_op"}}}}, false);
}

// Trials leave the validation beside the steps out; what they said is what is compiled with it.
TEST(FitMemory, CountsWhatStandsBesideTheSteps) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--model.vocab=4096"},
        {"--parallel.ranks=2", "--parallel.pipeline=2", "--train.global_batch=4"}}) {
    std::vector<std::string> keys = {
        "--model.layers=4", "--train.microbatch=1", "--validation.every=1"};
    keys.insert(keys.end(), more.begin(), more.end());
    const PlannedRun run = small_run(keys);
    const RunPrograms programs = compile_run(run.plan, run.target);
    ASSERT_TRUE(programs[0].validation);
    const std::int64_t all = bytes_of(run, programs);
    for (const int part : {2, 4, 8, 16, 32}) {
      PlannedRun fitted = run;
      RunPrograms own = programs;
      const std::optional<ChosenMemory> found =
          fit_memory(fitted, own, {}, {.limit = all - all / part});
      ASSERT_TRUE(found);
      EXPECT_TRUE(own[0].validation);
      EXPECT_EQ(found->bytes, bytes_of(fitted, own));
      EXPECT_EQ(found->bytes, bytes_of(fitted, compile_run(fitted.plan, fitted.target)));
    }
  }
}

// The first stage of a pipeline has most microbatches in flight, and so keeps less of each.
TEST(FitMemory, DiffersByStage) {
  PlannedRun run = small_run({"--model.layers=8",
                              "--parallel.ranks=4",
                              "--parallel.pipeline=4",
                              "--pipeline.layers=[2, 2, 2, 2]",
                              "--train.global_batch=8",
                              "--train.microbatch=1"});
  RunPrograms programs = compile_run(run.plan, run.target);
  const std::vector<std::int64_t> all = run_memory(run, programs).by_pipeline_rank;
  const std::int64_t limit = all[2];
  const std::optional<ChosenMemory> found = fit_memory(run, programs, {}, {.limit = limit});
  ASSERT_TRUE(found);
  for (const std::int64_t bytes : run_memory(run, programs).by_pipeline_rank) {
    EXPECT_LE(bytes, limit);
  }
  for (const RecomputeRule& rule : run.plan.passes.recompute) {
    EXPECT_LT(rule.first, 4) << to_string(run.plan.passes.recompute);
  }
  EXPECT_GT(found->repeated, 0.0);
}

TEST(RecomputeRules, AreOfTheLayersThatTheRunNames) {
  const auto rules = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"--model.layers=6"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return small_run(overrides).plan.passes.recompute;
  };
  EXPECT_EQ(rules({}), RecomputeRules());
  EXPECT_EQ(rules({"--memory.recompute=none"}), RecomputeRules());
  EXPECT_EQ(rules({"--memory.recompute=full"}), recompute_all());
  EXPECT_EQ(rules({"--memory.recompute=selective",
                   "--memory.keep=rms_norm.1",
                   "--memory.recompute_ops=[\"matmul.0\", \"add\"]"}),
            (RecomputeRules{{.kept = RecomputeKept::kAllButCheap,
                             .keep = {"rms_norm.1"},
                             .again = {"matmul.0", "add"}}}));
  EXPECT_EQ(rules({"--memory.recompute=full", "--memory.recompute_layers=2-4"}),
            (RecomputeRules{{.first = 2, .end = 5}}));
  EXPECT_EQ(rules({"--memory.recompute=full", "--memory.recompute_layers=2"}),
            (RecomputeRules{{.first = 0, .end = 2}}));
  const std::vector<std::string> stages = {"--parallel.ranks=2",
                                           "--parallel.pipeline=2",
                                           "--pipeline.layers=[4, 2]",
                                           "--train.global_batch=4",
                                           "--train.microbatch=1"};
  const auto of_stages = [&](std::vector<std::string> more) {
    more.insert(more.end(), stages.begin(), stages.end());
    return rules(more);
  };
  EXPECT_EQ(of_stages({"--memory.recompute=full", "--memory.recompute_layers=3"}),
            (RecomputeRules{{.first = 0, .end = 3}, {.first = 4, .end = 6}}));
  EXPECT_EQ(of_stages({"--memory.recompute=full_but_last_stage"}),
            (RecomputeRules{{.first = 0, .end = 4}}));
}

TEST(RecomputeRules, RefuseLayersThatAreNot) {
  const auto refused = [](const std::string& layers) {
    try {
      small_run(
          {"--model.layers=6", "--memory.recompute=full", "--memory.recompute_layers=" + layers});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused("2-6"),
              testing::HasSubstr("memory.recompute_layers: found \"2-6\", expected layers of the "
                                 "model, whose last is 5"));
  EXPECT_THAT(refused("7"),
              testing::HasSubstr("memory.recompute_layers: found \"7\", expected at most 6, the "
                                 "layers of a stage"));
}

}  // namespace
}  // namespace tessera
