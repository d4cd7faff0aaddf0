// What a killed or given-up run leaves of a save, and the next start makes of it.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/checkpoint/directory_remover.h"
#include "tessera/checkpoint/test_saver.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

// All parts are there, and each is whole, but none has a tensor that the checkpoint is to have.
TEST_F(SaverTest, PartsThatLackATensorAreNoCheckpoint) {
  for (const std::int64_t num_tensors : {2, 1}) {
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      CheckpointMeta meta = meta_of(1);
      meta.num_tensors = num_tensors;
      const std::vector<float> data = part(rank);
      savers_[static_cast<std::size_t>(rank)]->write(
          checkpoint_directory(parent_, 1), meta, tensors(rank, data));
      ASSERT_EQ(savers_[static_cast<std::size_t>(rank)]->status(), SaveStatus::kWritten);
    }
    testing::internal::CaptureStderr();
    const auto finished = finish_interrupted_saves(parent_);
    const std::string said = testing::internal::GetCapturedStderr();
    if (num_tensors == 1) {
      EXPECT_THAT(finished, ElementsAre(checkpoint_directory(parent_, 1)));
      expect_values(1);
    } else {
      EXPECT_THAT(finished, ::testing::IsEmpty());
      EXPECT_THAT(said, HasSubstr("found 1 tensors, expected the 2 of the whole checkpoint"));
      fs::remove_all(parent_);
      savers_ = make_savers();
    }
  }
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

}  // namespace
}  // namespace tessera
