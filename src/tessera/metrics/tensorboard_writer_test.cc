#include "tessera/metrics/tensorboard_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/metrics/event_record.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kTime = 1.5e9;

// Records that Google's protobuf wrote: tests/golden/make_tensorboard_goldens.py.
std::vector<std::string> golden_records() {
  std::istringstream lines(read_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                     "tests/golden/tensorboard/records.hex"));
  std::vector<std::string> records;
  for (std::string line; std::getline(lines, line);) {
    std::string record;
    for (std::size_t at = 0; at + 1 < line.size(); at += 2) {
      record += static_cast<char>(std::stoi(line.substr(at, 2), nullptr, 16));
    }
    records.push_back(record);
  }
  return records;
}

// The steps of the golden file.
std::vector<StepMetrics> golden_steps() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {{.step = 1,
           .loss = 7.5,
           .grad_norm = 1.0,
           .lr = 0.003,
           .tokens_per_second = 20480.0,
           .memory_bytes = 1024},
          {.step = 300,
           .loss = std::numeric_limits<double>::quiet_NaN(),
           .grad_norm = kInfinity,
           .lr = 0.0,
           .tokens_per_second = 1e-30,
           .memory_bytes = 1234567890123,
           .comm_bytes = {{"node", {1, 2, 3}}, {"pair", {3'000'000'000, 0, 0}}}},
          {.step = std::int64_t{1} << 40,
           .loss = -0.0,
           .grad_norm = 1e30,
           .lr = 1.0 / 3.0,
           .tokens_per_second = 1e6,
           .memory_bytes = std::int64_t{1} << 53}};
}

double time_of(std::int64_t step) {
  return kTime + static_cast<double>(step) / 8;
}

class TensorBoardWriterTest : public testing::Test {
 protected:
  // A run that starts after `resume_step` and is killed after `last_step`.
  std::filesystem::path run(std::int64_t resume_step, std::int64_t last_step) const {
    cut_event_files(directory_.path(), resume_step);
    TensorBoardWriter writer(directory_.path(), resume_step, kTime);
    for (std::int64_t step = resume_step + 1; step <= last_step; ++step) {
      writer.write({.step = step, .loss = 1.0}, time_of(step));
    }
    return writer.path();
  }

  // Names, in TensorBoard's order.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  // How many steps, up to each step, the files hold: whole records, in order.
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> found;
    for (const std::string& name : files()) {
      const std::string bytes = read_file(directory_.path() / name);
      std::size_t before = 0;
      for (std::int64_t step = 1; step <= 100; ++step) {
        const KeptRecords kept = kept_records(bytes, step);
        if (kept.bytes > before && kept.has_steps) {
          found.push_back(step);
        }
        before = kept.bytes;
      }
      EXPECT_EQ(before, bytes.size()) << name;
    }
    return found;
  }

  TestDirectory directory_;
};

TEST(Crc32c, VectorsOfRfc3720) {
  std::string rising;
  for (char byte = 0; byte < 32; ++byte) {
    rising += byte;
  }
  const std::string falling(rising.rbegin(), rising.rend());
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(crc32c(rising), 0x46DD794EU);
  EXPECT_EQ(crc32c(falling), 0x113FDB5CU);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST_F(TensorBoardWriterTest, WritesTheBytesOfProtobuf) {
  std::string expected;
  for (const std::string& record : golden_records()) {
    expected += record;
  }
  TensorBoardWriter writer(directory_.path(), 0, kTime);
  for (const StepMetrics& step : golden_steps()) {
    writer.write(step, time_of(step.step));
  }
  EXPECT_EQ(writer.path().filename(), "events.out.tfevents.1500000000.tessera");
  EXPECT_EQ(read_file(writer.path()), expected);
}

TEST_F(TensorBoardWriterTest, StepsAreInTheFileAtOnce) {
  const std::vector<std::string> records = golden_records();
  TensorBoardWriter writer(directory_.path(), 0, kTime);
  EXPECT_EQ(read_file(writer.path()), records[0] + records[1]);
  writer.write(golden_steps()[0], time_of(1));
  EXPECT_EQ(read_file(writer.path()), records[0] + records[1] + records[2]);
}

TEST_F(TensorBoardWriterTest, AResumedRunHasEachStepOnce) {
  const std::vector<std::int64_t> all = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (std::int64_t resume_step = 0; resume_step <= 6; ++resume_step) {
    for (const std::string& name : files()) {
      std::filesystem::remove(directory_.path() / name);
    }
    const std::string first = run(0, 6).filename();
    const std::string second = run(resume_step, 10).filename();
    EXPECT_EQ(steps(), all) << "resumed after " << resume_step;
    if (resume_step == 0) {
      // The first file held nothing that is left.
      EXPECT_THAT(files(), ElementsAre("events.out.tfevents.1500000000.tessera"));
    } else {
      EXPECT_THAT(files(), ElementsAre(first, second)) << "the newer file is read last";
      EXPECT_EQ(second, "events.out.tfevents.1500000001.tessera");
    }
  }
}

TEST_F(TensorBoardWriterTest, ASecondResumeCutsAllLaterFiles) {
  run(0, 4);
  run(3, 8);
  run(6, 9);
  EXPECT_EQ(files().size(), 3U);
  run(2, 5);
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(files().size(), 2U);
}

TEST_F(TensorBoardWriterTest, ATornRecordIsCutWhereverItBroke) {
  const std::filesystem::path path = run(0, 3);
  const std::string whole = read_file(path);
  const std::size_t two = kept_records(whole, 2).bytes;
  for (std::size_t size = two; size < whole.size(); ++size) {
    write_test_file(path, whole.substr(0, size));
    testing::internal::CaptureStderr();
    cut_event_files(directory_.path(), 3);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
    ASSERT_EQ(read_file(path), whole.substr(0, two)) << "torn at " << size;
  }
}

TEST_F(TensorBoardWriterTest, DamageIsCutWithAWarning) {
  const std::filesystem::path path = run(0, 3);
  const std::string whole = read_file(path);
  const std::size_t two = kept_records(whole, 2).bytes;
  for (std::size_t at = two; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    write_test_file(path, bytes);
    testing::internal::CaptureStderr();
    cut_event_files(directory_.path(), 3);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr(format("{} is damaged at byte {}", path.string(), two)));
    ASSERT_EQ(read_file(path), whole.substr(0, two)) << "changed at " << at;
  }
}

// A length of terabytes under a right checksum is a record that never came.
TEST_F(TensorBoardWriterTest, ALyingLengthIsNoMemory) {
  std::string record = golden_records()[0];
  const std::string length = "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F";
  const std::uint32_t crc = crc32c(length);
  const std::uint32_t mask = ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
  for (std::size_t byte = 0; byte < 4; ++byte) {
    record[8 + byte] = static_cast<char>((mask >> (8 * byte)) & 0xFF);
  }
  record.replace(0, 8, length);
  EXPECT_EQ(kept_records(record, 100).bytes, 0U);
  EXPECT_FALSE(kept_records(record, 100).damage);
}

TEST_F(TensorBoardWriterTest, OtherFilesAreLeftAlone) {
  for (const char* name : {"events.out.tfevents.1400000000.host",
                           "events.out.tfevents.14000000x0.tessera",
                           "events.out.tfevents.1.tessera",
                           "metrics.jsonl"}) {
    write_test_file(directory_.path() / name, "not ours");
  }
  run(0, 2);
  EXPECT_EQ(files().size(), 5U);
  EXPECT_EQ(read_file(directory_.path() / "events.out.tfevents.1400000000.host"), "not ours");
}

TEST_F(TensorBoardWriterTest, NamesWhatTheSystemRefuses) {
  EXPECT_THAT(
      error_of(ErrorCode::kDeviceError, [&] { cut_event_files(directory_.path() / "none", 0); }),
      HasSubstr("/none: No such file or directory"));
}

}  // namespace
}  // namespace tessera
