#include "tessera/resolve/choose_recompute.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/resolve/recompute_rules.h"
#include "tessera/resolve/test_recompute.h"

namespace tessera {
namespace {

std::int64_t bytes_of(const PlannedRun& run, const RunPrograms& programs) {
  return run_memory(run, programs).total();
}

// What is chosen fits in any limit that anything fits in, and takes at most 2 % more than the best
// of all combinations of eight choices of each layer.
TEST(FitRecompute, IsAsGoodAsTheBestOfAll) {
  const PlannedRun run = small_run({"--model.layers=3", "--train.microbatch=2"});
  const std::vector<RecomputeOutcome> all = all_outcomes(run, 8);
  const auto [least, most] = std::ranges::minmax(all, {}, &RecomputeOutcome::bytes);
  std::mt19937_64 random(11);
  for (int tried = 0; tried < 40; ++tried) {
    const std::int64_t limit =
        least.bytes +
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most.bytes - least.bytes));
    SCOPED_TRACE(limit);
    const double best = best_within(all, limit);
    PlannedRun fitted = run;
    RunPrograms programs = compile_run(run.plan, run.target);
    const std::optional<ChosenRecompute> found =
        fit_recompute(fitted, programs, {}, {.limit = limit});
    if (!found) {
      EXPECT_LE(bytes_of(run, programs), limit);
      continue;
    }
    EXPECT_LE(found->bytes, limit);
    EXPECT_EQ(found->bytes, bytes_of(fitted, compile_run(fitted.plan, fitted.target)));
    EXPECT_LE(1.0 + found->repeated, 1.02 * (1.0 + best));
  }
}

TEST(FitRecompute, LeavesARunThatFits) {
  for (const char* const recompute : {"auto", "full"}) {
    PlannedRun run = small_run({"--model.layers=2", format("--memory.recompute={}", recompute)});
    const RecomputeRules rules = run.plan.passes.recompute;
    RunPrograms programs = compile_run(run.plan, run.target);
    const std::int64_t needed = bytes_of(run, programs);
    EXPECT_FALSE(fit_recompute(run, programs, {}, {.limit = needed}));
    EXPECT_EQ(fit_recompute(run, programs, {}, {.limit = needed - 1}).has_value(),
              recompute == std::string("auto"));
    EXPECT_EQ(run.plan.passes.recompute == rules, recompute == std::string("full"));
  }
}

// Where nothing fits, what is left is the least.
TEST(FitRecompute, EndsAtTheLeast) {
  PlannedRun run = small_run({"--model.layers=3"});
  RunPrograms programs = compile_run(run.plan, run.target);
  const auto found = fit_recompute(run, programs, {}, {.limit = 1000});
  ASSERT_TRUE(found && found->search);
  EXPECT_FALSE(found->search->saved_by_gigabyte);
  EXPECT_EQ(found->bytes, found->search->least_bytes);
  EXPECT_EQ(run.plan.passes.recompute, (RecomputeRules{{.first = 0, .end = 3}}));
}

// A start takes what the one before chose, unless that does not fit, or there is much more room.
TEST(FitRecompute, TakesAnEarlierChoice) {
  const PlannedRun run = small_run({"--model.layers=3", "--train.microbatch=2"});
  const RunPrograms programs = compile_run(run.plan, run.target);
  const auto fit = [&](std::int64_t limit, std::optional<RecomputeChoice> before, bool is_taken) {
    PlannedRun fitted = run;
    fitted.chosen_before = std::move(before);
    RunPrograms own = programs;
    const std::optional<ChosenRecompute> found = fit_recompute(fitted, own, {}, {.limit = limit});
    EXPECT_EQ(found->search.has_value(), !is_taken);
    EXPECT_LE(found->bytes, limit);
    EXPECT_EQ(found->bytes, bytes_of(fitted, own));
    return std::pair(fitted.plan.passes.recompute, *found);
  };
  const std::int64_t all = bytes_of(run, programs);
  const std::int64_t limit = all - all / 10;
  const auto [rules, chosen] = fit(limit, std::nullopt, false);
  const auto [taken, again] = fit(limit, RecomputeChoice{limit, all, rules}, true);
  EXPECT_EQ(taken, rules);
  EXPECT_NEAR(again.repeated, chosen.repeated, 1e-9);
  EXPECT_EQ(again.all_bytes, chosen.all_bytes);
  fit(limit + limit / 25, RecomputeChoice{limit, all, rules}, true);
  fit(limit + limit / 15, RecomputeChoice{limit, all, rules}, false);
  fit(chosen.bytes, RecomputeChoice{limit, all, rules}, true);
  fit(chosen.bytes - 1, RecomputeChoice{limit, all, rules}, false);
  fit(limit, RecomputeChoice{limit, all + 1, rules}, false);
  fit(limit, RecomputeChoice{limit, all, {{.first = 0, .end = 4}}}, false);
  fit(limit, RecomputeChoice{limit, all, {{.first = 0, .end = 3, .keep = {"no_such_op"}}}}, false);
}

TEST(RecomputeChoice, IsReadAsItIsWritten) {
  const RecomputeRule one = {.first = 0, .end = 1, .keep = {"add.0", "attention.0"}};
  const RecomputeRule two = {.first = 1, .end = 3};
  const RecomputeRule last = {.first = 30, .end = 32, .keep = {"matmul.2"}};
  for (const RecomputeChoice& choice :
       {RecomputeChoice{.limit = 6'000'000'000, .all_bytes = 7},
        RecomputeChoice{.limit = 1, .all_bytes = 2, .rules = {two}},
        RecomputeChoice{.limit = 40, .all_bytes = 50, .rules = {one, two, last}}}) {
    EXPECT_EQ(parse_recompute_choice(to_string(choice)), choice);
  }
  EXPECT_EQ(to_string(RecomputeChoice{.limit = 40, .all_bytes = 50, .rules = {one, two}}),
            "40 of 50: 0-0 add.0 attention.0; 1-2");
  for (const char* const text : {"",
                                 "40",
                                 "40: 0-1",
                                 "x of 50: 0-1",
                                 "-1 of 50: 0-1",
                                 "40 of : 0-1",
                                 "99999999999999999999 of 50: 0-1",
                                 "40 of 50:0-1",
                                 "40 of 50: 0",
                                 "40 of 50: 2-1",
                                 "40 of 50: 0-1;",
                                 "40 of 50: 0-1; ",
                                 "40 of 50: 0-1  add",
                                 "40 of 50: 0-1 add;1-2",
                                 "40 of 50: 0-3; 3-4",
                                 "40 of 50: 0-99999999999999999999",
                                 "40 of 50: 0-9223372036854775807"}) {
    EXPECT_THAT(
        error_of(ErrorCode::kInvalidConfig, [&] { parse_recompute_choice(text); }),
        testing::StartsWith(format("found \"{}\", expected BYTES of BYTES: FIRST-LAST OP", text)));
  }
}

// Trials leave the validation beside the steps out; what they said is what is compiled with it.
TEST(FitRecompute, CountsWhatStandsBesideTheSteps) {
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
      const std::optional<ChosenRecompute> found =
          fit_recompute(fitted, own, {}, {.limit = all - all / part});
      ASSERT_TRUE(found);
      EXPECT_TRUE(own[0].validation);
      EXPECT_EQ(found->bytes, bytes_of(fitted, own));
      EXPECT_EQ(found->bytes, bytes_of(fitted, compile_run(fitted.plan, fitted.target)));
    }
  }
}

// The first stage of a pipeline has most microbatches in flight, and so keeps less of each.
TEST(FitRecompute, DiffersByStage) {
  PlannedRun run = small_run({"--model.layers=8",
                              "--parallel.ranks=4",
                              "--parallel.pipeline=4",
                              "--pipeline.layers=[2, 2, 2, 2]",
                              "--train.global_batch=8",
                              "--train.microbatch=1"});
  RunPrograms programs = compile_run(run.plan, run.target);
  const std::vector<std::int64_t> all = run_memory(run, programs).by_pipeline_rank;
  const std::int64_t limit = all[2];
  const std::optional<ChosenRecompute> found = fit_recompute(run, programs, {}, {.limit = limit});
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
