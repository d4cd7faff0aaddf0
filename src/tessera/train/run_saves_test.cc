// Checkpoints of whole runs: disks that are slow, full or damaged, directories that move, links of
// others.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/state/test_training.h"
#include "tessera/train/disk_space.h"
#include "tessera/train/session_log.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class RunSavesTest : public testing::Test {
 protected:
  RunConfig config(const std::string& run, std::int64_t ranks = 1) const {
    RunConfig config = runs_.config(run);
    config.parallel.ranks = ranks;
    config.train.microbatch = ranks == 1 ? 2 : 1;
    config.checkpoint.every = 2;
    config.log.tensorboard = false;
    return config;
  }

  // Ranks that wait for each other for less than the faults of their disks last.
  RunConfig impatient(const std::string& run) const {
    RunConfig two = config(run, 2);
    two.comm.deadline_seconds = 1;
    return two;
  }

  fs::path checkpoint(const std::string& run, std::int64_t step) const {
    return checkpoint_directory(runs_.run(run) / "checkpoints", step);
  }

  std::set<std::string> checkpoints(const std::string& run) const {
    return names_in(runs_.run(run) / "checkpoints");
  }

  // Every byte of the state.
  void expect_same_state(const fs::path& found, const fs::path& expected) const {
    const CheckpointReader a(found);
    const CheckpointReader b(expected);
    EXPECT_EQ(a.meta().tokens_seen, b.meta().tokens_seen);
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (const ManifestTensor& tensor : b.tensors()) {
      EXPECT_EQ(a.read(tensor.name, tensor.role), b.read(tensor.name, tensor.role)) << tensor.name;
    }
  }

  static void damage(const fs::path& directory) {
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() == ".safetensors") {
        std::string bytes = read_file(entry.path());
        bytes.back() = static_cast<char>(bytes.back() ^ 1);
        write_test_file(entry.path(), bytes);
      }
    }
  }

  TestRun runs_;
};

TEST_F(RunSavesTest, RanksWaitForSlowDisks) {
  train(config("quick", 2), tiny_llama());
  for (const bool in_background : {true, false}) {
    // One rank's part; the publishing of rank 0.
    for (const char* const path : {"rank-00001-model", "manifest.json"}) {
      const std::string run = format("slow{}{}", in_background, path);
      RunConfig slow = impatient(run);
      slow.checkpoint.async = in_background;
      const Faults faults({{.call = FaultCall::kSync, .path = path, .delay_seconds = 1.6}});
      train(slow, tiny_llama());
      EXPECT_EQ(faults.hits(), 1);
      expect_same_state(checkpoint(run, 6), checkpoint("quick", 6));
    }
  }
}

TEST_F(RunSavesTest, RanksWaitForSlowReads) {
  train(config("slow", 2), tiny_llama());
  RunConfig more = impatient("slow");
  more.train.steps = 7;
  const Faults faults({{.call = FaultCall::kRead, .path = ".safetensors", .delay_seconds = 1.6}});
  EXPECT_EQ(train(more, tiny_llama()).step, 7);
  EXPECT_EQ(faults.hits(), 1);
}

TEST_F(RunSavesTest, NobodyWaitsForRemovals) {
  RunConfig slow = impatient("slow");
  slow.checkpoint.keep = 1;
  const Faults faults(
      {{.call = FaultCall::kRemove, .path = ".tmp-removed", .times = 2, .delay_seconds = 1.5}});
  train(slow, tiny_llama());
  EXPECT_EQ(faults.hits(), 2);
  EXPECT_THAT(checkpoints("slow"), ElementsAre("step-00000006"));
}

// The last save is of the step of one that failed, whose files are still being removed.
TEST_F(RunSavesTest, AnotherAttemptDoesNotMeetTheFirst) {
  train(config("whole", 2), tiny_llama());
  RunConfig two = config("twice", 2);
  two.checkpoint.every = 6;
  const Faults faults({{.call = FaultCall::kSync, .path = "rank-00001-model", .error = EIO},
                       {.call = FaultCall::kRemove, .path = ".0/rank", .delay_seconds = 0.3}});
  train(two, tiny_llama());
  EXPECT_EQ(faults.hits(0), 1);
  EXPECT_EQ(faults.hits(1), 1);
  expect_same_state(checkpoint("twice", 6), checkpoint("whole", 6));
}

TEST_F(RunSavesTest, AFailedRemovalOrPublicationIsAWarning) {
  for (const auto& [call, path] : {std::pair(FaultCall::kRemove, "part-00000"),
                                   std::pair(FaultCall::kRename, "checkpoints/step-00000002")}) {
    const std::string run = format("run{}", static_cast<int>(call));
    const Faults faults({{.call = call, .path = path, .error = EIO}});
    EXPECT_EQ(train(config(run), tiny_llama()).step, 6);
    EXPECT_EQ(faults.hits(), 1);
    EXPECT_THAT(checkpoints(run), Contains("step-00000006"));
  }
}

// An older one that cannot lose its name stays, and others go all the same.
TEST_F(RunSavesTest, WhatCannotBePrunedIsAWarning) {
  RunConfig one = config("run");
  one.checkpoint.keep = 1;
  const Faults faults({{.call = FaultCall::kRename,
                        .path = "/step-00000002",
                        .after = 1,
                        .times = Fault::kAlways,
                        .error = EPERM}});
  testing::internal::CaptureStderr();
  EXPECT_EQ(train(one, tiny_llama()).step, 6);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cannot rename "));
  EXPECT_GE(faults.hits(), 1);
  EXPECT_THAT(checkpoints("run"), ElementsAre("step-00000002", "step-00000006"));
}

TEST_F(RunSavesTest, WithoutThreadsARunSavesAllTheSame) {
  std::optional<Faults> faults;
  const TrainHooks exhausting = {.before_step = [&](std::int64_t, std::int64_t step) {
    if (step == 2) {
      faults.emplace(std::vector<Fault>{{.call = FaultCall::kThread,
                                         .path = "libstdc++",
                                         .times = Fault::kAlways,
                                         .error = EAGAIN}});
    }
  }};
  EXPECT_EQ(train(config("run"), tiny_llama(), exhausting).step, 6);
  EXPECT_GE(faults->hits(), 3);
  faults.reset();
  CheckpointReader(checkpoint("run", 6)).verify();
}

TEST_F(RunSavesTest, MetricsAreDurableBeforeTheCheckpoint) {
  // A power cut that comes with the checkpoint's name finds the lines up to its step.
  const Faults faults({{.call = FaultCall::kSync, .path = "metrics.jsonl", .times = 0},
                       {.call = FaultCall::kSync, .path = "/run", .times = 0}});
  train(config("run"), tiny_llama());
  EXPECT_EQ(faults.calls(0), 3) << "steps 2, 4 and 6";
  EXPECT_GE(faults.calls(1), 1);
}

TEST_F(RunSavesTest, ADamagedCheckpointIsSetAside) {
  train(config("whole", 2), tiny_llama());
  for (const std::int64_t ranks : {1, 2}) {
    const std::string run = format("run{}", ranks);
    train(config(run, 2), tiny_llama());
    damage(checkpoint(run, 6));
    fs::remove(checkpoint(run, 4) / "manifest.json");
    RunConfig again = config(run, ranks);

    again.checkpoint.fall_back = false;
    EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { train(again, tiny_llama()); }),
                AllOf(HasSubstr("found checksum"), HasSubstr("step-00000006")));
    again.checkpoint.fall_back = true;
    again.checkpoint.resume = checkpoint(run, 6);
    EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { train(again, tiny_llama()); }),
                HasSubstr("found checksum"));
    EXPECT_THAT(checkpoints(run), Contains("step-00000006"));

    again.checkpoint.resume = "auto";
    EXPECT_EQ(train(again, tiny_llama()).step, 6);
    EXPECT_THAT(checkpoints(run),
                AllOf(Contains("damaged-step-00000006"), Contains("damaged-step-00000004")));
    if (ranks == 2) {
      expect_same_state(checkpoint(run, 6), checkpoint("whole", 6));
    }
  }
}

// Nor does what no manifest lists, whatever lies there.
TEST_F(RunSavesTest, WhatLiesBesideACheckpointDoesNotBlock) {
  for (const bool is_pipe : {false, true}) {
    const std::string run = format("run{}", is_pipe);
    train(config(run), tiny_llama());
    for (const char* const name : {"metrics.jsonl", "tokenizer.json"}) {
      const fs::path beside = checkpoint(run, 6) / name;
      fs::remove(beside);
      if (is_pipe) {
        ASSERT_EQ(::mkfifo(beside.c_str(), 0666), 0);
      } else {
        write_test_file(beside, "no line");
      }
    }
    RunConfig more = config(run);
    more.train.steps = 8;
    EXPECT_EQ(train(more, tiny_llama()).step, 8);
  }
}

// What the machine cannot read now says nothing of the checkpoint.
TEST_F(RunSavesTest, AMachineThatCannotReadIsNoDamage) {
  train(config("run", 2), tiny_llama());
  for (const int error : {EMFILE, ESTALE, ENOMEM}) {
    for (const FaultCall call : {FaultCall::kOpen, FaultCall::kRead}) {
      const Faults faults({{.call = call,
                            .path = "step-00000006/",
                            .after = 2,
                            .times = Fault::kAlways,
                            .error = error}});
      error_of(ErrorCode::kDeviceError, [&] { train(config("run", 2), tiny_llama()); });
      EXPECT_GE(faults.hits(), 1);
    }
  }
  EXPECT_THAT(checkpoints("run"), Contains("step-00000006"));
  EXPECT_EQ(train(config("run", 2), tiny_llama()).step, 6);
}

// It would be lost that the run has come far, by the second start in a row at the latest.
TEST_F(RunSavesTest, NothingWholeIsNoNewStart) {
  RunConfig one = config("run");
  one.checkpoint.keep = 2;
  train(one, tiny_llama());
  damage(checkpoint("run", 6));
  fs::remove(checkpoint("run", 4) / "manifest.json");
  for (int start = 0; start < 2; ++start) {
    EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { train(one, tiny_llama()); }),
                AllOf(HasSubstr("no checkpoint in"),
                      HasSubstr("is whole"),
                      HasSubstr("found checksum"),
                      HasSubstr("step-00000004 is not a checkpoint: it has no manifest.json")));
    EXPECT_THAT(checkpoints("run"), ElementsAre("step-00000004", "step-00000006"));
  }
}

// That another model was asked for is no damage.
TEST_F(RunSavesTest, AnotherModelsCheckpointStays) {
  train(config("run", 2), tiny_llama());
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { train(config("run", 2), tiny_gpt2()); }),
              HasSubstr("belongs to another model"));
  EXPECT_THAT(checkpoints("run"), Contains("step-00000006"));
}

TEST_F(RunSavesTest, NothingIsPrunedBeforeALaterStateIsFinite) {
  RunConfig one = config("run");
  one.checkpoint.keep = 1;
  const TrainHooks stopping = {.before_step = [](std::int64_t, std::int64_t step) {
    if (step == 4) {
      std::raise(SIGTERM);
    }
  }};
  EXPECT_TRUE(train(one, tiny_llama(), stopping).interrupted);
  EXPECT_THAT(checkpoints("run"), ElementsAre("step-00000002", "step-00000004"));
  // The next start does it, after its first step.
  EXPECT_THAT(error_of(ErrorCode::kInvalidData,
                       [&] {
                         train(one, tiny_llama(), {.before_step = [](auto, std::int64_t step) {
                                 TESSERA_REQUIRE(step < 6, ErrorCode::kInvalidData, "stop");
                               }});
                       }),
              HasSubstr("stop"));
  EXPECT_THAT(checkpoints("run"), ElementsAre("step-00000004", "step-00000005"))
      << "the latter saved on the way out";
  train(one, tiny_llama());
  EXPECT_THAT(checkpoints("run"), ElementsAre("step-00000006"));
}

// The last step's update makes weights that no step has seen.
TEST_F(RunSavesTest, ARuinedLastStateLeavesWhatWasBefore) {
  RunConfig one = config("run");
  one.checkpoint.keep = 1;
  one.train.steps = 5;
  train(one, tiny_llama());
  one.train.steps = 6;
  one.optimizer.lr = 1e38;
  one.optimizer.weight_decay = 10;
  one.schedule.warmup = 0;
  EXPECT_EQ(train(one, tiny_llama()).step, 6);
  EXPECT_THAT(checkpoints("run"), ElementsAre("step-00000005", "step-00000006"));
}

TEST_F(RunSavesTest, TimeSavesTheSameStepOnAllRanks) {
  train(config("whole", 2), tiny_llama());
  RunConfig two = config("timed", 2);
  two.checkpoint.every = 0;
  two.checkpoint.every_minutes = 1e-9;
  two.checkpoint.keep = 0;
  two.checkpoint.async = false;
  train(two, tiny_llama());
  EXPECT_GE(checkpoints("timed").size(), 5U);
  expect_same_state(checkpoint("timed", 6), checkpoint("whole", 6));
  two = config("never", 2);
  two.checkpoint.every = 0;
  train(two, tiny_llama());
  EXPECT_THAT(checkpoints("never"), ElementsAre("step-00000006")) << "15 minutes are not over";
}

// Where no save by steps has a copy in the plan, steps wait for those by time.
TEST_F(RunSavesTest, SavesByTimeTakeNoCopyThatIsNotPlanned) {
  RunConfig timed = config("timed");
  timed.checkpoint.every = 0;
  timed.checkpoint.every_minutes = 1e-9;
  timed.checkpoint.keep = 0;
  const Faults faults({{.call = FaultCall::kSync,
                        .path = "model-",
                        .times = Fault::kAlways,
                        .delay_seconds = 0.2}});
  const TrainHooks hooks = {.before_step = [&](std::int64_t /*rank*/, std::int64_t step) {
    // A save is owed after one step and done before the next.
    EXPECT_TRUE(step < 3 || fs::exists(checkpoint("timed", step - 1))) << step;
  }};
  train(timed, tiny_llama(), hooks);
  EXPECT_GE(faults.hits(), 5);
}

// As in the background, a later save takes its place.
TEST_F(RunSavesTest, AFailedSaveByTimeIsAWarning) {
  for (const std::int64_t ranks : {1, 2}) {
    const std::string run = format("failed{}", ranks);
    train(config("whole", ranks), tiny_llama());
    RunConfig timed = config(run, ranks);
    timed.checkpoint.every = 0;
    timed.checkpoint.every_minutes = 1e-9;
    timed.checkpoint.keep = 0;
    const Faults faults({{.call = FaultCall::kSync, .path = "model-", .times = 2, .error = EIO}});
    testing::internal::CaptureStderr();
    EXPECT_EQ(train(timed, tiny_llama()).step, 6);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("warning: there is no checkpoint of step "));
    EXPECT_EQ(faults.hits(), 2);
    expect_same_state(checkpoint(run, 6), checkpoint("whole", 6));
    fs::remove_all(runs_.run("whole"));
  }
}

TEST_F(RunSavesTest, ADirectoryThatMovesEndsTheRun) {
  train(config("whole", 2), tiny_llama());
  for (const std::int64_t at : {4, 6}) {
    const fs::path from = runs_.run("run");
    const fs::path to = runs_.run(format("moved{}", at));
    const TrainHooks moving = {.before_step = [&](std::int64_t rank, std::int64_t step) {
      if (rank == 0 && step == at) {
        fs::rename(from, to);
        fs::create_directory(from);  // another run's
      }
    }};
    EXPECT_THAT(
        error_of(ErrorCode::kInvalidConfig, [&] { train(config("run", 2), tiny_llama(), moving); }),
        AllOf(HasSubstr(format("run.dir {} was moved to {}", from.string(), to.string())),
              HasSubstr(format("--run.dir={} goes on from there", to.string()))));
    EXPECT_THAT(names_in(from), IsEmpty());
    EXPECT_THAT(names_in(to), Contains("exit-0.json"));
    fs::remove_all(from);
    EXPECT_EQ(train(config(to.filename().string(), 2), tiny_llama()).step, 6);
    expect_same_state(checkpoint(to.filename().string(), 6), checkpoint("whole", 6));
  }
}

TEST_F(RunSavesTest, ADirectoryThatIsRemovedEndsTheRun) {
  const TrainHooks removing = {.before_step = [&](std::int64_t, std::int64_t step) {
    if (step == 3) {
      fs::remove_all(runs_.run("run"));
    }
  }};
  RunConfig one = config("run");
  one.checkpoint.async = false;
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { train(one, tiny_llama(), removing); }),
              HasSubstr("was removed while the run was writing there"));
  EXPECT_FALSE(fs::exists(runs_.run("run")));
}

TEST_F(RunSavesTest, LinksThatOthersCanHavePutThereAreNotFollowed) {
  const fs::path run = runs_.run("run");
  const fs::path mine = runs_.run("mine");
  for (const std::string name : {"config.toml",
                                 "sessions.jsonl",
                                 "lock",
                                 "metrics.jsonl",
                                 "tokenizer.json",
                                 "checkpoints"}) {
    fs::remove_all(run);
    fs::create_directory(run);
    ::chmod(run.c_str(), 0777);
    fs::remove_all(mine);
    if (name == "checkpoints") {
      fs::create_directories(mine / ".tmp-step-99");
    } else {
      write_test_file(mine, "precious");
    }
    fs::create_symlink(mine, run / name);
    EXPECT_THAT(
        error_of(ErrorCode::kInvalidConfig, [&] { train(config("run"), tiny_llama()); }),
        HasSubstr(format("{} is a link that others can have put there", (run / name).string())));
    if (name == "checkpoints") {
      EXPECT_THAT(names_in(mine), ElementsAre(".tmp-step-99"));
    } else {
      EXPECT_EQ(read_file(mine), "precious");
    }
  }
  // In a directory of one's own a link is one's own.
  ::chmod(run.c_str(), 0755);
  fs::remove(run / "checkpoints");
  fs::create_directory(runs_.run("elsewhere"));
  fs::create_symlink(runs_.run("elsewhere"), run / "checkpoints");
  train(config("run"), tiny_llama());
  EXPECT_THAT(names_in(runs_.run("elsewhere")), Contains("step-00000006"));
}

// One that comes while the run is on its way.
TEST_F(RunSavesTest, OutputsDoNotFollowSuchLinks) {
  const fs::path open = runs_.run("open");
  fs::create_directory(open);
  ::chmod(open.c_str(), 0777);
  write_test_file(runs_.run("mine"), "precious");
  fs::create_symlink(runs_.run("mine"), open / "sessions.jsonl");
  fs::create_symlink(runs_.run("mine"), open / "report.html");
  error_of(ErrorCode::kInvalidConfig, [&] { write_file_atomic(open / "report.html", "page"); });
  error_of(ErrorCode::kInvalidConfig, [&] { log_session_end(open, {.step = 1}); });
  error_of(ErrorCode::kInvalidConfig, [&] { FileLock(open / "report.html", "it"); });
  EXPECT_EQ(read_file(runs_.run("mine")), "precious");
  // A sticky one, as /tmp is, keeps one's own names.
  ::chmod(open.c_str(), 01777);
  write_file_atomic(open / "report.html", "page");
  EXPECT_EQ(read_file(runs_.run("mine")), "page");
}

TEST(DiskSpace, IsSaidWhereItIsShort) {
  const fs::path here = fs::temp_directory_path();
  const auto free = static_cast<std::int64_t>(fs::space(here).available);
  EXPECT_EQ(disk_shortage(here, {.checkpoint_bytes = free / 8, .keep = 3}), "");
  EXPECT_EQ(disk_shortage(here, {.checkpoint_bytes = free / 2, .keep = 3, .present = 4}), "")
      << "one more";
  EXPECT_THAT(disk_shortage(here, {.checkpoint_bytes = free / 2, .keep = 3, .present = 1}),
              HasSubstr("checkpoint.keep = 3 needs room for 5 at a time, of which 1 are there"));
  EXPECT_THAT(
      disk_shortage(here,
                    {.checkpoint_bytes = free / 2, .keep = 3, .keeps_best = true, .present = 1}),
      HasSubstr("needs room for 6 at a time"));
  EXPECT_THAT(disk_shortage(here, {.checkpoint_bytes = free, .present = 7}),
              HasSubstr("keeps all of them"));
  EXPECT_THAT(disk_shortage(
                  here, {.checkpoint_bytes = 1, .keep = std::numeric_limits<std::int64_t>::max()}),
              HasSubstr("saves will fail once it is full"));
}

}  // namespace
}  // namespace tessera
