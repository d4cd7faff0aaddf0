// tessera plan: what it proposes, in words, as JSON and as a run file, and what is refused.
#include <cstdint>
#include <filesystem>
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

TEST_F(PlanTest, SaysWhyAPlanIsNone) {
  const Outcome outcome = plan({"--why=t1 p1 ddp full"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("why not \"t1 p1 ddp full\""));
  EXPECT_THAT(outcome.out, HasSubstr("this plan"));
  EXPECT_THAT(outcome.out, HasSubstr("No plan of this space is faster than"));
  EXPECT_THAT(refused({"--why=t3"}), HasSubstr("no plan of this space has all of these words"));
}

TEST_F(PlanTest, MarksWhatIsAllowed) {
  const json plain = planned({"--seconds=0"});
  for (const json& each : plain.at("plans")) {
    EXPECT_FALSE(each.at("changes_numbers").get<bool>());
  }
  EXPECT_LT(plain.at("space"), planned({"--seconds=0", "--allow=int8,float8"}).at("space"));
  EXPECT_THAT(refused({"--allow=int2"}), HasSubstr("expected a list of int8, int4 and float8"));
}

TEST_F(PlanTest, HasARowForEachNumberOfRanks) {
  const json sweep = planned({"--sweep=parallel.ranks=1..2"});
  ASSERT_EQ(sweep.at("rows").size(), 2U);
  EXPECT_EQ(sweep.at("rows").at(1).at("ranks"), 2);
  EXPECT_THAT(refused({"--sweep=train.microbatch=1,2"}), HasSubstr("expected parallel.ranks"));
}

TEST_F(PlanTest, RefusesWhatCannotBe) {
  EXPECT_THAT(refused({"--memory.limit_bytes=1000000"}, 4),
              HasSubstr("the least that was found is"));
  EXPECT_THAT(refused({"--parallel.ranks=32768"}), HasSubstr("expected at most the 16384 devices"));
  EXPECT_THAT(refused({"--parallel.ranks=7"}), HasSubstr("no plan divides"));
  const Outcome outcome = tessera({"plan", "--model.flavor=debug"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("give --cluster=FILE"));
}

}  // namespace
}  // namespace tessera
