#include "tessera/train/run_report.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/units.h"
#include "tessera/launch/exit_record.h"
#include "tessera/metrics/metrics_writer.h"
#include "tessera/train/run_facts.h"
#include "tessera/train/session_log.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RunReportTest : public testing::Test {
 protected:
  RunReportTest() {
    write_test_file(run() / "config.toml", "[model]\nflavor = \"debug\"\n[train]\nsteps = 20\n");
    std::string lines;
    for (std::int64_t step = 1; step <= 10; ++step) {
      lines +=
          to_json({.step = step, .loss = 11.0 - static_cast<double>(step), .tokens = step * 100}) +
          "\n";
    }
    write_test_file(run() / "metrics.jsonl", lines);
  }

  const std::filesystem::path& run() const { return directory_.path(); }

  ReportPage describe() const { return describe_run(run(), read_metrics(run() / "metrics.jsonl")); }

  std::vector<std::string> notices() const {
    std::vector<std::string> texts;
    for (const Notice& notice : describe().notices) {
      texts.push_back(notice.text);
    }
    return texts;
  }

 private:
  TestDirectory directory_;
};

TEST_F(RunReportTest, SaysHowTheRunEnded) {
  EXPECT_EQ(describe().status.text, "Not known how it ended");
  log_session_start(run(), {});
  EXPECT_EQ(describe().status.text, "Ended without a word: killed, or the machine stopped");
  EXPECT_EQ(describe().status.tone, Tone::kBad);
  log_session_end(run(), {.step = 7, .stopped = true});
  EXPECT_EQ(describe().status.text, "Stopped after step 7");
  log_session_start(run(), {.step = 7});
  log_session_end(run(), {.step = 1000});
  EXPECT_EQ(describe().status.text, "Finished after step 1,000");
  EXPECT_EQ(describe().status.tone, Tone::kGood);
  {
    const FileLock lock(run() / "lock", "the run");
    EXPECT_EQ(describe().status.text, "Training now");
  }
  const Error error(ErrorCode::kDiverged, "no good");
  for (const int rank : {10, 2}) {
    write_exit_record({.run_dir = run(), .rank = rank}, error, 9);
  }
  EXPECT_EQ(describe().status.text, "Failed: 2 ranks");
  EXPECT_THAT(notices(),
              ElementsAre(HasSubstr("rank 2 failed after step 9 with exit code 1"),
                          HasSubstr("rank 10 failed")));
  write_test_file(run() / "exit-3.json", "{\"rank\":");
  EXPECT_THAT(notices()[0], HasSubstr("exit-3.json cannot be read"));
}

TEST_F(RunReportTest, NamesTheBestCheckpoint) {
  std::string lines;
  for (std::int64_t step = 1; step <= 4; ++step) {
    const double loss = step == 3 ? 2.5 : 3.5;
    lines +=
        to_json({.step = step, .validation_loss = step == 1 ? std::nullopt : std::optional(loss)}) +
        "\n";
  }
  write_test_file(run() / "metrics.jsonl", lines);
  std::filesystem::create_directories(run() / "checkpoints/step-00000003");
  write_test_file(run() / "checkpoints/step-00000003/manifest.json", "{}");
  std::filesystem::create_directory_symlink("step-00000003", run() / "checkpoints/best");
  const ReportPage page = describe();
  EXPECT_EQ(page.tiles[2].label, "Lowest validation loss");
  EXPECT_EQ(page.tiles[2].value, "2.5000");
  EXPECT_EQ(page.tiles[2].detail, "step 3");
  const std::vector<Fact>& facts = page.facts.back().facts;
  ASSERT_EQ(facts.size(), 2U);
  EXPECT_EQ(facts[0].label, "step-00000003");
  EXPECT_EQ(facts[1].label, "Best");
  EXPECT_EQ(facts[1].value, "step-00000003");
}

TEST_F(RunReportTest, PutsTheLastPredictionBesideTheSteps) {
  const auto detail = [this] {
    for (const Tile& tile : describe().tiles) {
      if (tile.label == "Time in steps") {
        return tile.detail;
      }
    }
    return std::string();
  };
  write_test_file(run() / "metrics.jsonl", to_json({.step = 1, .step_seconds = 2.0}) + "\n");
  log_session_start(run(), {.predicted_step = 3.0});
  EXPECT_EQ(detail(), "2.0 s a step, predicted 3 s");
  log_session_start(run(), {.predicted_step = 1.5, .constants = "measured here"});
  EXPECT_EQ(detail(), "2.0 s a step, predicted 1.5 s (measured here)");
  log_session_start(run(), {});
  EXPECT_EQ(detail(), "2.0 s a step");
}

TEST_F(RunReportTest, AConfigThatCannotBeReadIsANotice) {
  EXPECT_THAT(notices(), IsEmpty());
  write_test_file(run() / "config.toml", "[model]\nflavour = \"debug\"\n");
  EXPECT_THAT(notices(), ElementsAre(HasSubstr("did you mean \"flavor\"")));
  std::filesystem::remove(run() / "config.toml");
  EXPECT_THAT(notices(), ElementsAre(HasSubstr("config.toml: No such file")));
}

// A run may go on with fewer pipeline ranks, or without.
TEST_F(RunReportTest, TellsOfThePipelineRanksOfTheLastStep) {
  const std::string three = to_json(
      {.step = 1,
       .pipeline_ranks = {{.memory_bytes = 1024}, {.memory_bytes = 2048}, {.memory_bytes = 4096}}});
  const std::string two =
      to_json({.step = 2, .pipeline_ranks = {{.memory_bytes = 3072}, {.memory_bytes = 5120}}});
  const auto facts = [&](const std::string& lines) {
    write_test_file(run() / "metrics.jsonl", lines);
    std::vector<std::string> values;
    if (const auto group =
            pipeline_facts(read_metrics(run() / "metrics.jsonl"), read_sessions(run()))) {
      for (const Fact& fact : group->facts) {
        values.push_back(fact.value);
      }
    }
    return values;
  };
  EXPECT_EQ(facts(three + "\n").size(), 3U);
  EXPECT_THAT(facts(three + "\n" + two + "\n"),
              ElementsAre(HasSubstr(format_bytes(3072)), HasSubstr(format_bytes(5120))));
  EXPECT_THAT(facts(three + "\n" + to_json({.step = 2}) + "\n"), IsEmpty());
  log_session_start(run(), {});
  log_session_end(run(),
                  {.step = 2,
                   .pipeline = {{.measured = 0.25, .expected = 0.2},
                                {.measured = std::nullopt, .expected = 0.5}}});
  EXPECT_THAT(facts(two + "\n"),
              ElementsAre(HasSubstr("; waits 25.0 % of a step, by its schedule 20.0 %"),
                          testing::Not(HasSubstr("waits"))));
}

TEST_F(RunReportTest, NamesStepsThatHaveNoLine) {
  std::string lines;
  for (const int step : {4, 5, 7, 11}) {
    lines += to_json({.step = step}) + "\n";
  }
  write_test_file(run() / "metrics.jsonl", lines);
  EXPECT_THAT(notices(), ElementsAre("metrics.jsonl has no lines of steps 1 to 3, 6, 8 to 10."));
}

// A resume from an earlier step takes the place of what came after it.
TEST_F(RunReportTest, MarksWhereTheRunWentOn) {
  for (const int step : {0, 4, 8, 6}) {
    log_session_start(run(), {.step = step});
  }
  EXPECT_THAT(describe().resumed_after, ElementsAre(4, 6));
}

TEST_F(RunReportTest, CommandErrors) {
  const std::filesystem::path output = run() / "report.html";
  const auto report = [&](const std::filesystem::path& of) {
    report_command({.run_dir = of, .output = output});
  };
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { report(run() / "none"); }),
              HasSubstr("none is no directory, expected the directory of a run"));
  std::filesystem::create_directory(run() / "empty");
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { report(run() / "empty"); }),
              HasSubstr("empty/metrics.jsonl: No such file or directory"));
  EXPECT_FALSE(std::filesystem::exists(output));
  // Failed before its first step: that is worth a page.
  write_exit_record({.run_dir = run() / "empty"}, Error(ErrorCode::kOutOfMemory, "big"), {});
  testing::internal::CaptureStdout();
  report(run() / "empty");
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("report.html: 0 steps of "));
  EXPECT_THAT(read_file(output), HasSubstr("rank 0 failed with exit code 4 (out of memory): big"));
}

}  // namespace
}  // namespace tessera
