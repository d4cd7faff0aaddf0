#include "tessera/metrics/metrics_writer.h"

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

StepMetrics metrics_of(std::int64_t step) {
  return {.step = step,
          .loss = 8.0 / static_cast<double>(step),
          .grad_norm = 0.1 * static_cast<double>(step),
          .lr = 3e-3,
          .tokens = step * 2048,
          .step_seconds = 0.25,
          .tokens_per_second = 8192.0,
          .memory_bytes = 1234567890123};
}

TEST(StepMetricsText, HasAnObjectOfEachPipelineRankAtItsEnd) {
  StepMetrics metrics = metrics_of(1);
  const std::string before = to_json(metrics);
  metrics.pipeline_ranks = {{.memory_bytes = 5},
                            {.memory_bytes = 7, .comm_bytes = {{"node", {1, 2, 3}}}}};
  EXPECT_EQ(to_json(metrics),
            before.substr(0, before.size() - 1) +
                R"(,"pipeline_ranks":[{"memory_bytes":5,"comm_bytes":null},)"
                R"({"memory_bytes":7,"comm_bytes":{"node":{"state":1,"tensor":2,"scalar":3}}}]})");
}

class MetricsWriterTest : public ::testing::Test {
 protected:
  void write(std::int64_t resume_step, std::int64_t last_step) const {
    MetricsWriter writer(path_, resume_step);
    for (std::int64_t step = resume_step + 1; step <= last_step; ++step) {
      writer.write(metrics_of(step));
    }
  }

  std::string uninterrupted(std::int64_t last_step) const {
    std::string lines;
    for (std::int64_t step = 1; step <= last_step; ++step) {
      lines += to_json(metrics_of(step)) + "\n";
    }
    return lines;
  }

  TestDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "metrics.jsonl";
};

TEST(StepMetrics, HasTheDocumentedKeysInOrder) {
  EXPECT_EQ(to_json({.step = 3,
                     .loss = 7.5,
                     .grad_norm = 1.0,
                     .lr = 0.003,
                     .tokens = 6144,
                     .step_seconds = 0.1,
                     .tokens_per_second = 20480.0,
                     .memory_bytes = 1024}),
            R"({"step":3,"loss":7.5,"grad_norm":1.0,"lr":0.003,"tokens":6144,"step_seconds":0.1,)"
            R"("tokens_per_second":20480.0,"memory_bytes":1024})");
}

TEST(StepMetrics, HasTheValidationOfAStepThatHadOne) {
  EXPECT_THAT(to_json({.memory_bytes = 7, .validation_loss = 2.5}),
              testing::EndsWith(R"("memory_bytes":7,"validation_loss":2.5})"));
  EXPECT_THAT(to_json({}), testing::Not(testing::HasSubstr("validation")));
}

TEST(StepMetrics, TellsWhatWasSentByLevelAndClass) {
  const std::string line = to_json({.comm_bytes = {{"node", {1, 2, 3}}, {"pair", {4, 5, 6}}}});
  EXPECT_THAT(line,
              testing::EndsWith(R"("comm_bytes":{"node":{"state":1,"tensor":2,"scalar":3},)"
                                R"("pair":{"state":4,"tensor":5,"scalar":6}}})"));
}

TEST(StepMetrics, FloatsReadBackExactly) {
  for (const double value : {1.0 / 3.0,
                             8.123456789012345e-300,
                             static_cast<double>(0.1F),
                             std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::denorm_min(),
                             -0.0}) {
    const auto json = nlohmann::json::parse(to_json({.loss = value}));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(json["loss"].get<double>()),
              std::bit_cast<std::uint64_t>(value));
  }
}

TEST(StepMetrics, WhatIsNotFiniteIsNull) {
  const auto json =
      nlohmann::json::parse(to_json({.loss = std::numeric_limits<double>::quiet_NaN(),
                                     .grad_norm = std::numeric_limits<double>::infinity()}));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST_F(MetricsWriterTest, LinesAreInTheFileAtOnce) {
  MetricsWriter writer(path_, 0);
  writer.write(metrics_of(1));
  EXPECT_EQ(read_file(path_), uninterrupted(1));
  writer.write(metrics_of(2));
  EXPECT_EQ(read_file(path_), uninterrupted(2));
}

TEST_F(MetricsWriterTest, AResumedRunHasTheFileOfAnUninterruptedOne) {
  for (std::int64_t resume_step = 0; resume_step <= 12; ++resume_step) {
    std::filesystem::remove(path_);
    write(0, 12);
    write(resume_step, 20);
    EXPECT_EQ(read_file(path_), uninterrupted(20)) << "resumed after " << resume_step;
  }
}

TEST_F(MetricsWriterTest, ATornLastLineIsCutWhereverItBroke) {
  const std::string whole = uninterrupted(3);
  const std::size_t two = uninterrupted(2).size();
  for (std::size_t size = two; size < whole.size(); ++size) {
    write_test_file(path_, whole.substr(0, size));
    write(2, 4);
    ASSERT_EQ(read_file(path_), uninterrupted(4)) << "torn at " << size;
  }
  // What a power cut leaves of a block that was never written.
  write_test_file(path_, uninterrupted(2) + std::string(100, '\0'));
  write(2, 4);
  EXPECT_EQ(read_file(path_), uninterrupted(4));
  write_test_file(path_, "{\"st");
  write(0, 1);
  EXPECT_EQ(read_file(path_), uninterrupted(1));
}

Error caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "no error"};
}

TEST_F(MetricsWriterTest, AValidationThatComesLaterIsWhereItWouldHaveBeen) {
  for (const bool several : {false, true}) {
    std::filesystem::remove(path_);
    StepMetrics last = metrics_of(3);
    if (several) {
      last.comm_bytes = {{"node", {1, 2, 3}}};
    }
    write(0, 2);
    MetricsWriter writer(path_, 2);
    writer.write(last);
    writer.add_validation(3, 1.0 / 3.0);
    writer.write(metrics_of(4));
    last.validation_loss = 1.0 / 3.0;
    EXPECT_EQ(read_file(path_),
              uninterrupted(2) + to_json(last) + "\n" + to_json(metrics_of(4)) + "\n");
    EXPECT_EQ(caught([&] { writer.add_validation(5, 2.0); }).code(), ErrorCode::kInvalidArgument);
  }
}

// A file that has its name is what lines go to, though the system could not say that it is durable;
// a loss that could not be written comes with the next line.
TEST_F(MetricsWriterTest, AValidationThatCannotBeWrittenComesWithTheNextLine) {
  for (const Fault& fault :
       {Fault{.call = FaultCall::kRename, .path = "metrics.jsonl", .error = EIO},
        Fault{.call = FaultCall::kSync, .path = "metrics.jsonl", .error = EIO},
        Fault{.call = FaultCall::kSync,
              .path = directory_.path().filename().string(),
              .after = 1,
              .error = EIO}}) {
    std::filesystem::remove(path_);
    MetricsWriter writer(path_, 0);
    writer.write(metrics_of(1));
    {
      const Faults faults({fault});
      error_of(ErrorCode::kDeviceError, [&] { writer.add_validation(1, 2.5); });
      EXPECT_EQ(faults.hits(), 1);
      EXPECT_TRUE(writer.has_unwritten());
    }
    writer.write(metrics_of(2));
    EXPECT_FALSE(writer.has_unwritten());
    writer.write(metrics_of(3));
    StepMetrics first = metrics_of(1);
    first.validation_loss = 2.5;
    EXPECT_EQ(
        read_file(path_),
        to_json(first) + "\n" + to_json(metrics_of(2)) + "\n" + to_json(metrics_of(3)) + "\n");
  }
}

TEST_F(MetricsWriterTest, ALineThatAnotherRankKeptIsTakenOnce) {
  write(0, 2);
  for (int start = 0; start < 2; ++start) {
    MetricsWriter writer(path_, 3);
    writer.make_up(3, to_json(metrics_of(3)));
    EXPECT_EQ(read_file(path_), uninterrupted(3));
  }
  MetricsWriter writer(path_, 3);
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { writer.make_up(4, to_json(metrics_of(3))); }),
              HasSubstr("is of step 3, expected step 4"));
}

TEST_F(MetricsWriterTest, RefusesAFileThatIsNotOurs) {
  for (const std::string line : {"notes", "{}", "[1]", "", "{\"step\":\"1\"}", "{\"step\":1.5}"}) {
    const std::string before = uninterrupted(1) + line + "\n" + to_json(metrics_of(3)) + "\n";
    write_test_file(path_, before);
    const Error error = caught([&] { MetricsWriter writer(path_, 2); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_EQ(error.message(),
              format("{}: the line at byte {} is '{}': expected a JSON object with an integer "
                     "'step'; move the file away to go on",
                     path_.string(),
                     uninterrupted(1).size(),
                     line));
    EXPECT_EQ(read_file(path_), before) << "a refused file is not touched";
  }
}

TEST_F(MetricsWriterTest, NamesWhatTheSystemRefuses) {
  const Error missing =
      caught([&] { MetricsWriter writer(directory_.path() / "none" / "metrics.jsonl", 0); });
  EXPECT_EQ(missing.code(), ErrorCode::kDeviceError);
  EXPECT_THAT(missing.message(), HasSubstr("none/metrics.jsonl: No such file or directory"));
}

// A part of a line must not stay before the next one.
TEST_F(MetricsWriterTest, LinesThatCannotBeWrittenComeWithTheNextOne) {
  MetricsWriter writer(path_, 0);
  writer.write(metrics_of(1));
  {
    const Faults faults({{.call = FaultCall::kWrite, .path = path_.string(), .most_bytes = 20},
                         {.call = FaultCall::kWrite,
                          .path = path_.string(),
                          .after = 1,
                          .times = 3,
                          .error = ENOSPC}});
    for (const std::int64_t step : {2, 3, 4}) {
      EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { writer.write(metrics_of(step)); }),
                  HasSubstr("No space left on device"));
      EXPECT_TRUE(writer.has_unwritten());
    }
    EXPECT_EQ(faults.hits(0), 1);
    EXPECT_EQ(faults.hits(1), 3);
  }
  writer.write(metrics_of(5));
  EXPECT_FALSE(writer.has_unwritten());
  EXPECT_EQ(read_file(path_), uninterrupted(5));
}

}  // namespace
}  // namespace tessera
