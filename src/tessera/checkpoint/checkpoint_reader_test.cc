// What several ranks have written, read back: damage, shared checks, one tensor after another.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/test_saver.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(SaverTest, EveryFlippedByteOfEveryFileIsSeen) {
  start_all();
  finish_all();
  const fs::path directory = checkpoint_directory(parent_, 1);
  for (const std::string& name : names_in(directory)) {
    const std::string good = read_file(directory / name);
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(static_cast<unsigned char>(bad[i]) ^ 16U);
      write_test_file(directory / name, bad);
      EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { CheckpointReader reader(directory); }),
                  HasSubstr(name));
    }
    write_test_file(directory / name, good);
  }
}

// A link of a name that says no step is what it leads to; one of a step's is that step or refused.
TEST_F(SaverTest, ALinkOfAnotherStepIsRefused) {
  start_all();
  finish_all();
  const fs::path directory = checkpoint_directory(parent_, 1);
  fs::create_directory_symlink(directory.filename(), parent_ / "best");
  EXPECT_EQ(CheckpointReader(parent_ / "best").meta().step, 1);
  EXPECT_EQ(CheckpointReader(parent_ / "best" / "").meta().step, 1);
  const fs::path other = checkpoint_directory(parent_, 4);
  fs::create_directory_symlink(directory.filename(), other);
  for (const fs::path& link : {other, other / ""}) {
    EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { CheckpointReader reader(link); }),
                HasSubstr("found step 1, expected the 4 of the directory's name"));
  }
}

// Of three readers that share the work, just one sees the damage.
TEST_F(SaverTest, ReadersShareTheChecksums) {
  start_all();
  finish_all();
  const fs::path directory = checkpoint_directory(parent_, 1);
  const fs::path file = directory / "rank-00001-optimizer-00001-of-00001.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() + 1);
  write_test_file(file, bytes);
  for (const Verify verify : {Verify::kChecksums, Verify::kOnLoad}) {
    std::vector<std::int64_t> failed;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      try {
        CheckpointReader(directory, {.verify = verify, .rank = rank, .num_ranks = kRanks}).load({});
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), HasSubstr(file.string() + ": found checksum "));
        failed.push_back(rank);
      }
    }
    EXPECT_THAT(failed, ElementsAre(1));
  }
}

// Reads of a rank's file alone check it alone.
TEST_F(SaverTest, ChecksWhereItReads) {
  start_all();
  finish_all();
  const fs::path directory = checkpoint_directory(parent_, 1);
  const fs::path file = directory / "rank-00002-optimizer-00001-of-00001.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() + 1);
  write_test_file(file, bytes);
  const CheckpointReader reader(directory, {.verify = Verify::kWhereRead});
  reader.load({});
  std::vector<float> row(6);
  const auto load = [&](std::size_t count) {
    const TensorRead read{.tensor = reader.find("w", TensorRole::kMoment1),
                          .first = 0,
                          .out = std::as_writable_bytes(std::span(row).first(count))};
    reader.load({&read, 1});
  };
  load(4);  // the left columns are the other ranks'
  EXPECT_THAT(row, ElementsAre(100.0F, 101.0F, 102.0F, 103.0F, 0.0F, 0.0F));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { load(5); }),
              HasSubstr(file.string() + ": found checksum "));
}

// Each rank has a third of every tensor: its file is much longer than what is read at once.
TEST_F(SaverTest, TensorsComeOneAfterAnother) {
  constexpr std::size_t kTensors = 96;
  constexpr std::int64_t kElements = 1 << 18;
  std::vector<float> values(kTensors * kElements);
  std::iota(values.begin(), values.end(), 0.0F);
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    std::vector<CheckpointTensor> tensors;
    for (std::size_t i = 0; i < kTensors; ++i) {
      TensorSlice part = whole_slice({kElements});
      part.begin = kElements / kRanks * rank;
      part.count = rank + 1 == kRanks ? kElements - part.begin : kElements / kRanks;
      tensors.push_back({.name = format("t{:02}", i),
                         .shape = {kElements},
                         .slice = part,
                         .data = std::as_bytes(std::span(values).subspan(
                             i * kElements + static_cast<std::size_t>(part.begin),
                             static_cast<std::size_t>(part.count)))});
    }
    savers_[static_cast<std::size_t>(rank)]->write(
        checkpoint_directory(parent_, 1), meta_of(1), tensors);
  }
  finish_all();

  const CheckpointReader reader(checkpoint_directory(parent_, 1), {.verify = Verify::kWhereRead});
  std::vector<float> found(values.size());
  std::vector<std::size_t> missing(kTensors, kElements * sizeof(float));
  std::size_t num_open = 0;
  std::size_t most_open = 0;
  std::vector<TensorRead> reads;
  for (std::size_t i = 0; i < kTensors; ++i) {
    reads.push_back(
        {.tensor = reader.find(format("t{:02}", i), TensorRole::kParameter),
         .num_bytes = kElements * sizeof(float),
         .take = [&, i](std::int64_t at, std::span<const std::byte> bytes) {
           num_open += missing[i] == kElements * sizeof(float) ? 1 : 0;
           most_open = std::max(most_open, num_open);
           missing[i] -= bytes.size();
           num_open -= missing[i] == 0 ? 1 : 0;
           std::ranges::copy(
               bytes, std::as_writable_bytes(std::span(found).subspan(i * kElements)).begin() + at);
         }});
  }
  reader.load(reads);
  EXPECT_EQ(found, values);
  // Chunks of 8 MiB hold the thirds of 24 tensors and parts of two.
  EXPECT_LE(most_open, 27U);
}

}  // namespace
}  // namespace tessera
