#include "tessera/checkpoint/checkpoint_saver.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
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
#include "tessera/checkpoint/test_saver.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

// What no rank has written no sum over the parts would miss.
TEST_F(SaverTest, TheTensorsMustBeThoseOfTheModel) {
  const CheckpointTensor own = {.name = "w", .role = TensorRole::kMoment1, .shape = kShape};
  const auto publish_as = [&](const std::vector<CheckpointTensor>& expected) {
    savers_ = make_savers();
    savers_[0]->set_options({.num_ranks = kRanks, .launch = "launch", .tensors = expected});
    start_all();
    savers_[0]->finish();
    savers_.clear();
  };
  const auto refusal = [&](const std::vector<CheckpointTensor>& expected) {
    return error_of(ErrorCode::kInvalidData, [&] { publish_as(expected); });
  };
  EXPECT_THAT(refusal({own, {.name = "v", .shape = {3}}}),
              HasSubstr("tensor 'v': found none in the ranks' parts, expected f32 (3)"));
  EXPECT_THAT(refusal({{.name = "w", .shape = kShape}}),
              HasSubstr("tensor 'w': found none in the ranks' parts, expected f32 (4, 6)"));
  CheckpointTensor other = own;
  other.shape = {6, 4};
  EXPECT_THAT(refusal({other}),
              HasSubstr("tensor 'w' (moment1): found f32 (4, 6) in the ranks' parts, expected f32 "
                        "(6, 4)"));
  EXPECT_EQ(find_newest_checkpoint(parent_), std::nullopt);
  publish_as({own});
  expect_values(1);
}

// A model without the tensor, but with another one that is there, too.
TEST_F(SaverTest, NoRankMayWriteATensorThatTheModelHasNot) {
  CheckpointSaver saver({.tensors = {{.name = "v", .shape = {1}}}});
  const std::vector<float> data = {1.0F};
  std::vector<CheckpointTensor> written;
  for (const char* name : {"v", "w"}) {
    written.push_back({.name = name, .shape = {1}, .data = std::as_bytes(std::span(data))});
  }
  saver.write(checkpoint_directory(parent_, 1), meta_of(1), written);
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { saver.finish(); }),
              HasSubstr("tensor 'w': found f32 (1) in the ranks' parts, expected none"));
}

}  // namespace
}  // namespace tessera
