#include "tessera/checkpoint/checkpoint_saver.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
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
#include "tessera/base/testing/faults.h"
#include "tessera/checkpoint/file_size_limit.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kRanks = 3;
const std::vector<std::int64_t> kShape = {4, 6};  // one tensor, whole: 24 elements

CheckpointMeta meta_of(std::int64_t step) {
  return {.step = step, .model = "{}"};
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// Rank r of three holds a part of "w" as a plan would cut it: ranks 0 and 1 the two flat halves of
// its left columns, rank 2 its right ones.
class SaverTest : public ::testing::Test {
 protected:
  SaverTest() : values_(24) { std::iota(values_.begin(), values_.end(), 100.0F); }

  TensorSlice slice(std::int64_t rank) const {
    if (rank == 2) {
      return {.offset = {0, 4}, .extent = {4, 2}, .begin = 0, .count = 8};
    }
    return {.offset = {0, 0}, .extent = {4, 4}, .begin = rank * 7, .count = rank == 0 ? 7 : 9};
  }

  // The slice's elements, by their places in the whole.
  std::vector<float> part(std::int64_t rank) const {
    const TensorSlice cut = slice(rank);
    std::vector<float> result;
    for (std::int64_t i = cut.begin; i < cut.begin + cut.count; ++i) {
      const std::int64_t row = i / cut.extent[1];
      const std::int64_t column = cut.offset[1] + i % cut.extent[1];
      result.push_back(values_[static_cast<std::size_t>(row * 6 + column)]);
    }
    return result;
  }

  std::vector<CheckpointTensor> tensors(std::int64_t rank, const std::vector<float>& data) const {
    return {{.name = "w",
             .role = TensorRole::kMoment1,
             .shape = kShape,
             .slice = slice(rank),
             .data = std::as_bytes(std::span(data))}};
  }

  void start(std::int64_t rank, std::int64_t step = 1) {
    std::vector<float> data = part(rank);
    savers_[static_cast<std::size_t>(rank)]->start(
        checkpoint_directory(parent_, step), meta_of(step), tensors(rank, data));
    data.assign(data.size(), 0.0F);  // training goes on
  }

  void start_all(std::int64_t step = 1) {
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      start(rank, step);
    }
    for (const auto& saver : savers_) {
      ASSERT_EQ(saver->wait(), SaveStatus::kWritten);
    }
  }

  void finish_all() {
    for (const auto& saver : savers_) {
      saver->finish();
    }
  }

  void abandon_all() {
    for (const auto& saver : savers_) {
      saver->wait();
      saver->abandon();
    }
  }

  void expect_values(std::int64_t step) const {
    const CheckpointReader reader(checkpoint_directory(parent_, step));
    const std::vector<std::byte> found = reader.read("w", TensorRole::kMoment1);
    EXPECT_TRUE(std::ranges::equal(found, std::as_bytes(std::span(values_))));
    // Every stretch of it, from wherever its slices lie: one by one, and all in one pass.
    std::deque<std::vector<float>> loaded;
    std::vector<TensorRead> reads;
    for (std::int64_t first = 0; first <= 24; ++first) {
      for (std::int64_t count = 0; count <= 24 - first; ++count) {
        std::vector<float>& out = loaded.emplace_back(static_cast<std::size_t>(count));
        const auto bytes = std::as_writable_bytes(std::span(out));
        reader.read("w", TensorRole::kMoment1, first, bytes);
        ASSERT_TRUE(std::ranges::equal(out, expected(first, out))) << first << " " << count;
        out.assign(out.size(), 0.0F);
        reads.push_back(
            {.tensor = reader.find("w", TensorRole::kMoment1), .first = first, .out = bytes});
      }
    }
    reader.load(reads);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      ASSERT_TRUE(std::ranges::equal(loaded[i], expected(reads[i].first, loaded[i])))
          << reads[i].first << " " << loaded[i].size();
    }
  }

  std::span<const float> expected(std::int64_t first, std::span<const float> like) const {
    return std::span(values_).subspan(static_cast<std::size_t>(first), like.size());
  }

  static std::vector<std::unique_ptr<CheckpointSaver>> make_savers(
      const std::string& launch = "launch") {
    std::vector<std::unique_ptr<CheckpointSaver>> savers;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      savers.push_back(std::make_unique<CheckpointSaver>(
          SaverOptions{.rank = rank, .num_ranks = kRanks, .threads = 2, .launch = launch}));
    }
    return savers;
  }

  TestDirectory root_;
  fs::path parent_ = root_.path() / "checkpoints";
  std::vector<float> values_;
  std::vector<std::unique_ptr<CheckpointSaver>> savers_ = make_savers();
};

TEST_F(SaverTest, RanksMakeOneCheckpoint) {
  start_all();
  EXPECT_THAT(names_in(parent_), ElementsAre(".tmp-step-00000001.launch.0"));
  EXPECT_EQ(find_newest_checkpoint(parent_), std::nullopt) << "nobody has finished it";
  finish_all();
  EXPECT_THAT(names_in(parent_), ElementsAre("step-00000001"));
  EXPECT_THAT(names_in(parent_ / "step-00000001"),
              ElementsAre("manifest.json",
                          "rank-00000-optimizer-00001-of-00001.safetensors",
                          "rank-00001-optimizer-00001-of-00001.safetensors",
                          "rank-00002-optimizer-00001-of-00001.safetensors"));
  expect_values(1);
}

TEST_F(SaverTest, MemoryAndSaverServeAgain) {
  start_all(1);
  finish_all();
  std::ranges::reverse(values_);
  start_all(2);
  finish_all();
  expect_values(2);
  std::ranges::reverse(values_);
  expect_values(1);
}

TEST_F(SaverTest, AStartNeedsTheEarlierSaveFinished) {
  start_all();
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { start(1, 2); }),
              HasSubstr("step-00000001 is not finished"));
  finish_all();
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { savers_[0]->finish(); }),
              HasSubstr("no save is written"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { savers_[0]->error(); }),
              HasSubstr("no save has failed"));
}

TEST_F(SaverTest, DataThatStaysIsWrittenFromWhereItIs) {
  std::vector<std::vector<float>> kept;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const SaverOptions options = {
        .rank = rank, .num_ranks = kRanks, .copies = false, .launch = "launch"};
    const auto at = static_cast<std::size_t>(rank);
    savers_[at] = std::make_unique<CheckpointSaver>(options);
    kept.push_back(part(rank));
    savers_[at]->reserve(tensors(rank, kept.back()));
    savers_[at]->start(checkpoint_directory(parent_, 1), meta_of(1), tensors(rank, kept.back()));
    EXPECT_EQ(savers_[at]->wait(), SaveStatus::kWritten);
    EXPECT_EQ(savers_[at]->memory_bytes(), 0);
  }
  finish_all();
  expect_values(1);
}

TEST_F(SaverTest, WithoutACopyItIsTheSame) {
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const std::vector<float> data = part(rank);
    CheckpointSaver& saver = *savers_[static_cast<std::size_t>(rank)];
    saver.write(checkpoint_directory(parent_, 1), meta_of(1), tensors(rank, data));
    EXPECT_EQ(saver.status(), SaveStatus::kWritten);
  }
  finish_all();
  expect_values(1);
}

// A process that dies between the ranks' writing and the end leaves nothing that looks complete;
// the next save of the same step does not take what it finds.
TEST_F(SaverTest, ACrashBeforeTheEndLeavesTheNewest) {
  start_all(1);
  finish_all();
  start_all(2);
  savers_ = make_savers("another");
  EXPECT_EQ(find_newest_checkpoint(parent_), checkpoint_directory(parent_, 1));
  std::ranges::reverse(values_);
  start_all(2);
  finish_all();
  EXPECT_EQ(names_in(checkpoint_directory(parent_, 2)).size(), 4U);
  expect_values(2);
}

// A rank of a run that was given up writes on when the next one is on its way.
TEST_F(SaverTest, PartsOfTwoLaunchesNeverMeet) {
  start(0);
  start(2);
  for (const std::size_t rank : {0U, 2U}) {
    ASSERT_EQ(savers_[rank]->wait(), SaveStatus::kWritten);
  }
  auto late = std::move(savers_);
  savers_ = make_savers("another");
  start_all();
  const std::vector<float> other(9, -1.0F);
  late[1]->write(checkpoint_directory(parent_, 1), meta_of(1), tensors(1, other));
  ASSERT_EQ(late[1]->status(), SaveStatus::kWritten);
  finish_all();
  expect_values(1);
  // What the first one has whole by now comes too late.
  EXPECT_THAT(finish_interrupted_saves(parent_), ::testing::IsEmpty());
  expect_values(1);
}

// As two attempts of one launch: the second begins while the first is being removed.
TEST_F(SaverTest, AnotherAttemptLiesElsewhere) {
  start_all();
  const std::set<std::string> first = names_in(parent_);
  {
    const Faults faults(
        {{.call = FaultCall::kRemove, .path = "launch.0/rank", .delay_seconds = 0.1}});
    abandon_all();
    start_all();
    finish_all();
    savers_[0]->remover().wait();
    EXPECT_EQ(faults.hits(), 1);
  }
  expect_values(1);
  EXPECT_THAT(names_in(parent_), Not(::testing::IsSupersetOf(first)));
}

// A kill on either side of the name.
TEST_F(SaverTest, AKillWhileAManifestGetsItsNameLosesNothing) {
  for (const bool has_parts : {true, false}) {
    start_all();
    {
      const Faults faults(
          {{.call = FaultCall::kRename, .path = "step-00000001/", .after = 0},
           {.call = FaultCall::kRename, .path = "checkpoints/step-00000001", .error = EIO},
           {.call = FaultCall::kRemove, .path = ".tmp-", .times = Fault::kAlways, .error = EIO}});
      EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { savers_[0]->finish(); }),
                  HasSubstr("cannot rename"));
      savers_[0]->remover().wait();
    }
    savers_ = make_savers();
    const fs::path save = parent_ / ".tmp-step-00000001.launch.0";
    ASSERT_TRUE(fs::exists(save / "manifest.json"));
    if (!has_parts) {
      fs::remove(save / "part-00001-of-00003.json");
    }
    EXPECT_THAT(finish_interrupted_saves(parent_), ElementsAre(checkpoint_directory(parent_, 1)));
    EXPECT_EQ(names_in(checkpoint_directory(parent_, 1)).size(), 4U);
    expect_values(1);
    fs::remove_all(parent_);
  }
}

// NFS cannot exchange two names: after a kill between its two renames the new one takes its place.
TEST_F(SaverTest, AKillBetweenTwoRenamesLosesNothing) {
  start_all();
  finish_all();
  std::ranges::reverse(values_);
  start_all();
  {
    const Faults faults(
        {{.call = FaultCall::kRename,
          .path = "checkpoints/step-00000001",
          .after = 1,
          .error = EINVAL},
         {.call = FaultCall::kRename,
          .path = "checkpoints/step-00000001",
          .after = 3,
          .error = EIO},
         {.call = FaultCall::kRemove, .path = ".tmp-", .times = Fault::kAlways, .error = EIO}});
    EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { savers_[0]->finish(); }),
                HasSubstr("cannot rename"));
    savers_[0]->remover().wait();
  }
  savers_ = make_savers();
  EXPECT_EQ(find_newest_checkpoint(parent_), std::nullopt);
  EXPECT_THAT(finish_interrupted_saves(parent_), ElementsAre(checkpoint_directory(parent_, 1)));
  expect_values(1);
}

TEST_F(SaverTest, WhatAllRanksHaveWrittenIsFinishedLater) {
  start_all(1);
  savers_ = make_savers();  // as after a crash
  EXPECT_EQ(find_newest_checkpoint(parent_), std::nullopt);
  EXPECT_THAT(finish_interrupted_saves(parent_), ElementsAre(checkpoint_directory(parent_, 1)));
  EXPECT_THAT(names_in(parent_), ElementsAre("step-00000001"));
  expect_values(1);
  EXPECT_THAT(finish_interrupted_saves(parent_), ::testing::IsEmpty());
  EXPECT_THAT(finish_interrupted_saves(parent_ / "missing"), ::testing::IsEmpty());
}

// Nor removed because the disk does not take the manifest now.
TEST_F(SaverTest, WhatCannotBeFinishedNowStays) {
  start_all(1);
  savers_ = make_savers();
  {
    const Faults faults({{.call = FaultCall::kWrite, .path = "manifest.json", .error = ENOSPC}});
    EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { finish_interrupted_saves(parent_); }),
                HasSubstr("step-00000001.launch.0 was written when the run was interrupted, and "
                          "stays: see to the disk, and start again"));
    EXPECT_EQ(faults.hits(), 1);
  }
  EXPECT_THAT(finish_interrupted_saves(parent_), ElementsAre(checkpoint_directory(parent_, 1)));
  expect_values(1);
}

TEST_F(SaverTest, AFileThatIsGoneSinceIsNoReasonNotToGoOn) {
  start_all(1);
  savers_ = make_savers();
  fs::remove(parent_ / ".tmp-step-00000001.launch.0" /
             "rank-00001-optimizer-00001-of-00001.safetensors");
  EXPECT_THAT(finish_interrupted_saves(parent_), ::testing::IsEmpty());
}

TEST_F(SaverTest, WhatARankHasNotWrittenIsNotFinishedLater) {
  start_all(2);
  savers_ = make_savers();
  const fs::path temporary = parent_ / ".tmp-step-00000002.launch.0";
  fs::rename(temporary / "part-00001-of-00003.json", temporary / "part-00001-of-00004.json");
  write_test_file(temporary / "part-00003-of-00003.json", "no rank has this number");
  testing::internal::CaptureStderr();
  EXPECT_THAT(finish_interrupted_saves(parent_), ::testing::IsEmpty());
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("of the 3 ranks that were to write it when the run was interrupted, the parts "
                "of these are missing: 1"));
  EXPECT_THAT(names_in(parent_), ElementsAre(".tmp-step-00000002.launch.0"));
  {
    DirectoryRemover remover;
    remove_interrupted_saves(parent_, remover);
  }
  EXPECT_THAT(names_in(parent_), ::testing::IsEmpty());
}

// Parts that are there and damaged are no checkpoint, and no reason not to go on.
TEST_F(SaverTest, DamagedPartsAreNotFinishedLater) {
  start_all(2);
  savers_ = make_savers();
  write_test_file(parent_ / ".tmp-step-00000002.launch.0" / "part-00001-of-00003.json", "{");
  EXPECT_THAT(finish_interrupted_saves(parent_), ::testing::IsEmpty());
  EXPECT_EQ(find_newest_checkpoint(parent_), std::nullopt);
}

TEST_F(SaverTest, AFailedRankLeavesTheNewest) {
  start_all(1);
  finish_all();
  start(0, 2);
  start(2, 2);
  EXPECT_EQ(savers_[0]->wait(), SaveStatus::kWritten);
  EXPECT_EQ(savers_[2]->wait(), SaveStatus::kWritten);
  {
    const FileSizeLimit full(10);
    start(1, 2);
    ASSERT_EQ(savers_[1]->wait(), SaveStatus::kFailed);
  }
  const Error error = savers_[1]->error();
  EXPECT_EQ(error.code(), ErrorCode::kDeviceError);
  EXPECT_THAT(error.message(), HasSubstr("rank-00001-optimizer-00001-of-00001.safetensors"));
  EXPECT_THAT(error.message(), HasSubstr("File too large"));
  EXPECT_THAT(error.what(), HasSubstr("step-00000002; earlier checkpoints are intact"));
  abandon_all();
  savers_[0]->remover().wait();
  EXPECT_THAT(names_in(parent_), ElementsAre("step-00000001"));
  expect_values(1);
  // The next one is as if nothing had happened.
  start_all(3);
  finish_all();
  expect_values(3);
}

TEST_F(SaverTest, ADirectoryThatIsGoneIsAFailure) {
  write_test_file(parent_, "a file");
  start(1);
  ASSERT_EQ(savers_[1]->wait(), SaveStatus::kFailed);
  EXPECT_THAT(savers_[1]->error().message(),
              HasSubstr(format("cannot create directory {}", parent_.string())));
}

TEST_F(SaverTest, AMissingPartIsNamed) {
  start_all();
  fs::remove(parent_ / ".tmp-step-00000001.launch.0" / "part-00002-of-00003.json");
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { savers_[0]->finish(); }),
              HasSubstr("part-00002-of-00003.json is missing, which rank 2 has written: all ranks "
                        "must see one file system"));
  savers_[0]->remover().wait();
  EXPECT_THAT(names_in(parent_), ::testing::IsEmpty());
  EXPECT_EQ(savers_[0]->status(), SaveStatus::kIdle);
}

// As after a removal by a process that knows nothing of this one: its manifest is there.
TEST_F(SaverTest, AListedFileThatIsGoneOrShortIsNotPublished) {
  const std::string name = "rank-00001-optimizer-00001-of-00001.safetensors";
  for (const bool is_there : {false, true}) {
    start_all();
    const fs::path file = fs::directory_iterator(parent_)->path() / name;
    if (is_there) {
      fs::resize_file(file, fs::file_size(file) - 1);
    } else {
      fs::remove(file);
    }
    EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { savers_[0]->finish(); }), HasSubstr(name));
    savers_[0]->remover().wait();
    EXPECT_THAT(names_in(parent_), ::testing::IsEmpty());
    for (std::size_t rank = 1; rank < kRanks; ++rank) {
      savers_[rank]->abandon();
    }
  }
}

TEST_F(SaverTest, WithoutThreadsItWritesByItself) {
  // A copy in pieces, and a file that several threads would write.
  const std::vector<float> values(std::size_t{5} << 20U, 1.5F);
  const CheckpointTensor tensor = {
      .name = "w", .shape = {std::ssize(values)}, .data = std::as_bytes(std::span(values))};
  CheckpointSaver saver({.threads = 3});
  {
    const Faults faults({{.call = FaultCall::kThread, .times = Fault::kAlways, .error = EAGAIN}});
    saver.start(checkpoint_directory(parent_, 1), meta_of(1), {&tensor, 1});
    ASSERT_EQ(saver.wait(), SaveStatus::kWritten) << saver.error().what();
    EXPECT_GE(faults.hits(), 3);
  }
  saver.finish();
  const CheckpointReader reader(checkpoint_directory(parent_, 1));
  EXPECT_TRUE(std::ranges::equal(reader.read("w", TensorRole::kParameter), tensor.data));
}

TEST_F(SaverTest, WhatCannotBeRemovedIsNoFailure) {
  start_all();
  const Faults faults(
      {{.call = FaultCall::kRemove, .path = "part-00001", .times = Fault::kAlways, .error = EIO}});
  finish_all();
  EXPECT_GE(faults.hits(), 1);
  expect_values(1);
}

// The next start may go on from the parts alone.
TEST_F(SaverTest, TheRecordIsDurableBeforeThePart) {
  const TestDirectory run;
  const fs::path record = run.path() / "record";
  write_test_file(record, "steps");
  const std::vector<float> values = {1, 2};
  const CheckpointTensor tensor = {
      .name = "w", .shape = {2}, .data = std::as_bytes(std::span(values))};
  CheckpointSaver saver({.beside = {{"note", "text"}}, .record = record});
  {
    const Faults faults(
        {{.call = FaultCall::kSync, .path = "record", .times = 0},
         {.call = FaultCall::kRename, .path = "part-", .times = Fault::kAlways, .error = EIO}});
    saver.write(checkpoint_directory(parent_, 1), meta_of(1), {&tensor, 1});
    EXPECT_EQ(saver.status(), SaveStatus::kFailed);
    EXPECT_EQ(faults.calls(0), 1);
    EXPECT_EQ(faults.hits(1), 1);
    saver.abandon();
  }
  const Faults faults({{.call = FaultCall::kSync, .path = "record", .error = EIO}});
  testing::internal::CaptureStderr();
  saver.write(checkpoint_directory(parent_, 1), meta_of(1), {&tensor, 1});
  EXPECT_EQ(saver.status(), SaveStatus::kWritten) << "the state is worth more";
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cannot flush "));
  saver.finish();
  EXPECT_EQ(read_file(checkpoint_directory(parent_, 1) / "note"), "text");
}

TEST_F(SaverTest, PartsThatDoNotMakeUpATensorAreRefused) {
  const auto refusal = [&](const TensorSlice& of_rank_2, std::int64_t step) {
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      std::vector<CheckpointTensor> own;
      const TensorSlice cut = rank == 2 ? of_rank_2 : slice(rank);
      const std::vector<float> data(static_cast<std::size_t>(cut.count));
      own = tensors(rank, data);
      own[0].slice = cut;
      savers_[static_cast<std::size_t>(rank)]->write(
          checkpoint_directory(parent_, 1), meta_of(rank == 2 ? step : 1), own);
    }
    const std::string message = error_of(ErrorCode::kInvalidData, [&] { savers_[0]->finish(); });
    for (std::int64_t rank = 1; rank < kRanks; ++rank) {
      savers_[static_cast<std::size_t>(rank)]->abandon();
    }
    return message;
  };
  EXPECT_THAT(refusal({.offset = {0, 4}, .extent = {4, 2}, .begin = 0, .count = 7}, 1),
              HasSubstr("tensor 'w' (moment1), slice 'moment1/w' of "
                        "rank-00002-optimizer-00001-of-00001.safetensors: the slices of its box "
                        "end at element 7, expected 8"));
  EXPECT_THAT(refusal({.offset = {0, 4}, .extent = {4, 2}, .begin = 1, .count = 7}, 1),
              HasSubstr("begins at element 1 of its box, expected 0: slices leave a hole"));
  EXPECT_THAT(refusal({.offset = {0, 3}, .extent = {4, 3}, .begin = 0, .count = 12}, 1),
              HasSubstr("its box of (4, 3) at (0, 3) overlaps that of (4, 4) at (0, 0)"));
  EXPECT_THAT(refusal({.offset = {0, 4}, .extent = {3, 2}, .begin = 0, .count = 6}, 1),
              HasSubstr("tensor 'w' (moment1): its slices hold 22 elements, expected the 24 of "
                        "(4, 6)"));
  EXPECT_THAT(refusal(slice(1), 1), HasSubstr("slices overlap"));
  EXPECT_THAT(refusal(slice(2), 5),
              HasSubstr("ranks 0 and 2 are of different saves: after steps 1 and 5"));
}

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
