// tessera plan: what it proposes, in words, as JSON and as a run file, and what is refused.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class PlanTest : public TrainingTest {
 protected:
  static std::string cluster() {
    return "--cluster=" +
           (std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" / "clusters" / "h100-dgx.toml")
               .string();
  }

  // Llama debug on two H100s, for as long as it takes.
  std::vector<std::string> with_run(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"plan",
                                          "--model.flavor=debug",
                                          "--train.dtype=bf16",
                                          "--train.global_batch=2",
                                          "--parallel.ranks=2",
                                          cluster()};
    if (more.empty() || more.front() != "--seconds=0") {
      arguments.emplace_back("--seconds=1000");
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  Outcome plan(const std::vector<std::string>& more) const { return tessera(with_run(more)); }

  json planned(std::vector<std::string> more) const {
    more.emplace_back("--json");
    const Outcome outcome = plan(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  }

  std::string refused(const std::vector<std::string>& more, int code = 2) const {
    const Outcome outcome = plan(more);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  }
};

TEST_F(PlanTest, ProposesAPlanAndWritesItsRunFile) {
  const json found = planned({"--write=best.toml", "--threads=1"});
  EXPECT_EQ(found.at("space"),
            found.at("refused").get<std::int64_t>() + found.at("too_large").get<std::int64_t>() +
                found.at("cut").get<std::int64_t>() + found.at("simulated").get<std::int64_t>());
  EXPECT_FALSE(found.at("ran_out").get<bool>());
  const json& best = found.at("plans").at(0);
  const auto seconds = best.at("step_seconds").get<double>();
  EXPECT_LE(seconds, 1.01 * found.at("lower_seconds").get<double>());
  EXPECT_LE(found.at("lower_seconds").get<double>(),
            found.at("yours").at("step_seconds").get<double>());
  // Other commands say the same of the file.
  const Outcome simulated = tessera({"simulate", "best.toml", "--json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  const json step = json::parse(simulated.out);
  EXPECT_EQ(step.at("step_seconds"), seconds);
  EXPECT_EQ(step.at("memory_bytes"), best.at("memory_bytes"));
  // Nothing is overwritten, and another number of threads finds the same.
  EXPECT_THAT(refused({"--write=best.toml"}), HasSubstr("found a file of that name"));
  EXPECT_EQ(planned({"--threads=2"}), found);
}

// The overrides of any plan make it of the run, whatever that says: its step takes the time and the
// memory that `plan` has said.
TEST_F(PlanTest, OverridesSettleAllThatTheFileSays) {
  const std::vector<std::string> own = {"--exhaustive",
                                        "--model.layers=2",
                                        "--parallel.pipeline=2",
                                        "--pipeline.schedule=gpipe",
                                        "--pipeline.chunks=1",
                                        "--pipeline.layers=[1, 1]",
                                        "--state.preset=hsdp@node",
                                        "--comm.overlap_layers=2",
                                        "--memory.recompute=attention"};
  const json found = planned(own);
  std::size_t with_stages = 0;
  std::size_t without = 0;
  constexpr std::size_t kTried = 2;
  for (const json& plan : found.at("plans")) {
    const auto overrides = plan.at("overrides").get<std::vector<std::string>>();
    const bool has_stages =
        std::ranges::find(overrides, "--parallel.pipeline=1") == overrides.end();
    std::size_t& tried = has_stages ? with_stages : without;
    if (tried == kTried) {
      continue;
    }
    ++tried;
    std::vector<std::string> arguments = with_run(own);
    arguments.front() = "simulate";
    std::erase_if(arguments, [](const std::string& each) {
      return each.starts_with("--seconds") || each == "--exhaustive";
    });
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    arguments.emplace_back("--json");
    const Outcome simulated = tessera(arguments);
    ASSERT_EQ(simulated.code, 0) << simulated.err;
    EXPECT_EQ(json::parse(simulated.out).at("memory_bytes"), plan.at("memory_bytes"));
    EXPECT_EQ(json::parse(simulated.out).at("step_seconds"), plan.at("step_seconds"));
  }
  EXPECT_EQ(with_stages, kTried);
  EXPECT_EQ(without, kTried);
  // The run's own plan is one of the space, with its layers.
  EXPECT_GE(found.at("yours").at("step_seconds"), found.at("lower_seconds"));
}

TEST_F(PlanTest, SaysWhyAPlanIsSlower) {
  const Outcome outcome = plan({"--why=t1 p1 ddp full"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("why not \"t1 p1 ddp full\""));
  EXPECT_THAT(outcome.out, HasSubstr("this plan"));
  EXPECT_THAT(outcome.out, HasSubstr("of all"));
  EXPECT_THAT(outcome.out, HasSubstr("No plan of this space is faster than"));
}

// Where the memory is that it takes too much of.
TEST_F(PlanTest, SaysWhyAPlanDoesNotFit) {
  const json found = planned({"--train.global_batch=4"});
  std::int64_t least = found.at("plans").at(0).at("memory_bytes").get<std::int64_t>();
  for (const json& each : found.at("plans")) {
    least = std::min(least, each.at("memory_bytes").get<std::int64_t>());
  }
  const Outcome outcome = plan({"--train.global_batch=4",
                                "--why=t1 p1 ddp none b2",
                                "--memory.limit_bytes=" + std::to_string(least)});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("t1 p1 d2 ddp - none b2: needs "));
  EXPECT_THAT(outcome.out, HasSubstr("  activation "));
  EXPECT_THAT(outcome.out, HasSubstr("  arena"));
  EXPECT_THAT(outcome.out, HasSubstr("  limit"));
}

// Before anything is looked for: there is no time for that here.
TEST_F(PlanTest, RefusesWordsOfNoPlan) {
  EXPECT_THAT(refused({"--seconds=0", "--why=t3"}),
              HasSubstr("no plan of this space has the word \"t3\": expected some of t1 p1 d2 "));
  EXPECT_THAT(refused({"--seconds=0", "--why=t2 d2"}),
              HasSubstr("no plan of this space has all of these words"));
  EXPECT_THAT(refused({"--seconds=0", "--why= "}), HasSubstr("found no words"));
}

// Every plan that sends or multiplies in fewer bits, and no other; the file's own formats are none
// that change numbers.
TEST_F(PlanTest, MarksWhatIsAllowed) {
  std::vector<std::string> run = {"--exhaustive", "--state.wire_param=int8", "--model.layers=2"};
  for (const json& each : planned(run).at("plans")) {
    EXPECT_FALSE(each.at("changes_numbers").get<bool>());
  }
  std::size_t marked = 0;
  std::size_t plain = 0;
  run.emplace_back("--allow=int8,float8");
  const json found = planned(run);
  for (const json& each : found.at("plans")) {
    const auto overrides = each.at("overrides").get<std::vector<std::string>>();
    const auto has = [&](const std::string& text) {
      return std::ranges::find(overrides, text) != overrides.end();
    };
    const bool changes = has("--state.wire_grad=int8") || has("--float8.recipe=rowwise");
    EXPECT_EQ(each.at("changes_numbers").get<bool>(), changes) << each.at("words");
    const bool says = each.at("words").get<std::string>().find('!') != std::string::npos;
    EXPECT_EQ(says, changes) << each.at("words");
    ++(changes ? marked : plain);
  }
  EXPECT_GT(marked, 0U);
  EXPECT_GT(plain, 0U);
  // What may move is taken to stay.
  EXPECT_THAT(plan({"--memory.offload_optimizer=auto"}).out,
              HasSubstr("memory.offload_* = \"auto\" is \"off\" in this search"));
  EXPECT_THAT(refused({"--allow=int2"}),
              HasSubstr("expected a list of int8, int4, float8, context, overlap and recompute"));
}

// As the steps that are simulated of each.
TEST_F(PlanTest, HasARowForEachNumberOfRanks) {
  const json sweep = planned({"--sweep=parallel.ranks=1..2"});
  ASSERT_EQ(sweep.at("rows").size(), 2U);
  const json& row = sweep.at("rows").at(1);
  EXPECT_EQ(row.at("ranks"), 2);
  const json& best = row.at("plans").at(0);
  EXPECT_EQ(row.at("step_seconds"), best.at("step_seconds"));
  EXPECT_EQ(row.at("memory_bytes"), best.at("memory_bytes"));
  EXPECT_GE(row.at("exposed_seconds").get<double>(), 0.0);
  EXPECT_NEAR(row.at("efficiency").get<double>(),
              row.at("tokens_per_second").get<double>() /
                  (2.0 * sweep.at("rows").at(0).at("tokens_per_second").get<double>()),
              1e-12);
  const Outcome text = plan({"--sweep=parallel.ranks=2,7"});
  EXPECT_THAT(text.out, HasSubstr("exposed traffic"));
  EXPECT_THAT(text.out, HasSubstr("parallel.ranks=7: parallel.ranks: found 7"));
  EXPECT_THAT(refused({"--sweep=parallel.ranks=7,11"}), HasSubstr("no value has a plan"));
  EXPECT_THAT(refused({"--sweep=parallel.ranks=1..2", "--memory.limit_bytes=1000000"}, 4),
              HasSubstr("no value has a plan"));
  EXPECT_THAT(refused({"--sweep=train.microbatch=1,2"}), HasSubstr("expected parallel.ranks"));
}

TEST_F(PlanTest, RefusesWhatCannotBe) {
  for (const char* const limit : {"--memory.limit_bytes=1000000", "--memory.limit_bytes=1000"}) {
    EXPECT_THAT(refused({limit}, 4), HasSubstr("the least that was found is t"));
  }
  EXPECT_THAT(refused({"--parallel.ranks=32768"}), HasSubstr("expected at most the 16384 devices"));
  EXPECT_THAT(refused({"--memory.recompute=full", "--memory.recompute_layers=1"}),
              HasSubstr("memory.recompute_layers: found \"1\", and plans recompute all layers "
                        "alike: leave it out"));
  EXPECT_THAT(refused({"--parallel.ranks=7"}),
              HasSubstr("t1 p1 d7: train.global_batch = 2 is not divided by 7 data ranks"));
  const Outcome outcome = tessera({"plan", "--model.flavor=debug"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("give --cluster=FILE"));
}

// Of which nothing can be timed: what is missing, and where.
TEST_F(PlanTest, NamesTheFactThatAClusterLacks) {
  const auto refused_on = [&](const std::string& file) {
    std::vector<std::string> arguments = with_run({});
    std::erase(arguments, cluster());
    arguments.push_back("--cluster=" + file);
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    return outcome.err;
  };
  const std::filesystem::path clusters =
      std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" / "clusters";
  EXPECT_THAT(refused_on((clusters / "virtual-2.toml").string()),
              HasSubstr("virtual-2.toml: device.memory_bandwidth: found 0, expected the bytes/s"));
  std::ofstream(path("slow.toml")) << "name = \"slow\"\n"
                                      "[device]\nname = \"x\"\nmemory = \"80 GB\"\n"
                                      "memory_bandwidth = \"1 TB/s\"\n"
                                      "peak = { f32 = \"10 TFLOP/s\", bf16 = \"100 TFLOP/s\" }\n"
                                      "[[levels]]\nname = \"node\"\nsize = 2\n"
                                      "bandwidth = 0\nlatency = \"2 us\"\n";
  EXPECT_THAT(refused_on(path("slow.toml").string()),
              HasSubstr("slow.toml: bandwidth of level node: found 0"));
}

}  // namespace
}  // namespace tessera
