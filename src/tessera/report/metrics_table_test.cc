#include "tessera/report/metrics_table.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/metrics/metrics_writer.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string line(const StepMetrics& metrics) {
  return to_json(metrics) + "\n";
}

class MetricsTableTest : public testing::Test {
 protected:
  MetricsTable read(const std::string& text, BrokenLines broken = BrokenLines::kRefuse) const {
    write_test_file(path_, text);
    return read_metrics(path_, broken);
  }

  TestDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "metrics.jsonl";
};

TEST_F(MetricsTableTest, ReadsWhatTheWriterWrote) {
  {
    MetricsWriter writer(path_, 0);
    writer.write({.step = 1, .loss = 1.0 / 3.0, .lr = 0.5, .tokens = 7, .memory_bytes = 1LL << 40});
    writer.write({.step = 2,
                  .loss = std::numeric_limits<double>::quiet_NaN(),
                  .lr = 0.25,
                  .tokens = 14,
                  .validation_loss = 2.5,
                  .comm_bytes = {{"node", {1, 2, 3}}}});
  }
  const MetricsTable table = read_metrics(path_);
  EXPECT_THAT(table.steps, ElementsAre(1, 2));
  EXPECT_EQ(table.column("loss")[0], 1.0 / 3.0);
  EXPECT_TRUE(std::isnan(table.column("loss")[1]));
  EXPECT_THAT(table.column("lr"), ElementsAre(0.5, 0.25));
  EXPECT_THAT(table.column("tokens"), ElementsAre(7, 14));
  EXPECT_EQ(table.column("memory_bytes")[0], 1099511627776.0);
  EXPECT_TRUE(std::isnan(table.column("comm_bytes/node")[0]));
  EXPECT_EQ(table.column("comm_bytes/node")[1], 6.0);
  EXPECT_TRUE(std::isnan(table.column("validation_loss")[0]));
  EXPECT_EQ(table.column("validation_loss")[1], 2.5);
  EXPECT_THAT(table.column("nothing"), IsEmpty());
}

TEST_F(MetricsTableTest, HasColumnsOfEachPipelineRank) {
  const MetricsTable table =
      read(line({.step = 1,
                 .pipeline_ranks = {{.memory_bytes = 5},
                                    {.memory_bytes = 7,
                                     .comm_bytes = {{"node", {1, 2, 3}}, {"pair", {4, 0, 0}}}}}}));
  EXPECT_THAT(table.column("pipeline_ranks/0/memory_bytes"), ElementsAre(5));
  EXPECT_THAT(table.column("pipeline_ranks/0/comm_bytes"), ElementsAre(0));
  EXPECT_THAT(table.column("pipeline_ranks/1/memory_bytes"), ElementsAre(7));
  EXPECT_THAT(table.column("pipeline_ranks/1/comm_bytes"), ElementsAre(10));
  std::string text = line({.step = 1});
  text.replace(text.find("}\n"), 1, ",\"pipeline_ranks\":[{\"memory_bytes\":1}]}");
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { read(text); }),
              HasSubstr("expected 'memory_bytes' and 'comm_bytes' of each in 'pipeline_ranks'"));
}

TEST_F(MetricsTableTest, ATornLastLineIsPassedOver) {
  const std::string whole = line({.step = 1}) + line({.step = 2});
  const std::size_t one = line({.step = 1}).size();
  for (std::size_t size = one; size < whole.size(); ++size) {
    ASSERT_THAT(read(whole.substr(0, size)).steps, ElementsAre(1)) << size;
  }
  EXPECT_THAT(read("").steps, IsEmpty());
}

TEST_F(MetricsTableTest, NamesTheBrokenLine) {
  const std::string head = line({.step = 1}) + line({.step = 5});
  const auto refused = [&](const std::string& text) {
    return error_of(ErrorCode::kInvalidData, [&] { read(head + text + "\n"); });
  };
  const std::string place = path_.string() + ":3: found ";
  EXPECT_EQ(refused("notes"),
            place +
                "'notes', expected a JSON object with an integer 'step'; mend the line, or "
                "leave out broken lines with --skip-broken");
  EXPECT_THAT(refused(""), HasSubstr(place + "'', expected a JSON object"));
  EXPECT_THAT(refused("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refused(R"({"step":6.5})"), HasSubstr("an integer 'step'"));
  EXPECT_THAT(refused(R"({"step":6})"), HasSubstr("a number or null as 'loss'"));
  EXPECT_THAT(refused(R"({"step":6,"loss":"low"})"), HasSubstr("a number or null as 'loss'"));
  EXPECT_THAT(refused(to_json({.step = 5})),
              HasSubstr("found '\"step\":5', expected a step above 5"));
  EXPECT_THAT(refused(std::string(500, 'x')), HasSubstr("x' ..., expected"));
  std::string traffic = to_json({.step = 6});
  traffic.insert(traffic.size() - 1, R"(,"comm_bytes":{"node":7})");
  EXPECT_THAT(refused(traffic), HasSubstr("by level and class as 'comm_bytes'"));
  std::string validation = to_json({.step = 6});
  validation.insert(validation.size() - 1, R"(,"validation_loss":"low")");
  EXPECT_THAT(refused(validation), HasSubstr("a number or null as 'validation_loss'"));
}

TEST_F(MetricsTableTest, SkipsAndCountsOnRequest) {
  std::string text = line({.step = 1});
  for (int i = 0; i < 8; ++i) {
    text += "notes\n";
  }
  const MetricsTable table = read(text + line({.step = 2}), BrokenLines::kSkip);
  EXPECT_THAT(table.steps, ElementsAre(1, 2));
  EXPECT_EQ(table.num_skipped, 8);
  EXPECT_EQ(table.skipped.size(), 5U);
  EXPECT_THAT(table.skipped.front(), HasSubstr("metrics.jsonl:2: found 'notes'"));
}

TEST_F(MetricsTableTest, NamesAMissingFile) {
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { read_metrics(path_); }),
              HasSubstr("metrics.jsonl: No such file or directory"));
}

}  // namespace
}  // namespace tessera
