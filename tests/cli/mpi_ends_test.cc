// How runs over MPI end that are stopped, lose a rank, or have one that fails: with all that can be
// saved, from which the same command goes on.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tests/cli/mpi_test.h"
#include "tests/cli/process.h"
#include "tests/distributed/failing_mpi.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kNoSaves = "--checkpoint.every=0";

// What mpirun of Open MPI leaves its ranks after Ctrl-C, in place of a second, in which a busy
// machine need not end a step.
constexpr const char* kPatientLauncher = "--mca odls_base_sigkill_timeout 10";

class MpiEndsTest : public MpiTest {
 protected:
  // `env` before the program, in a line for shell(): a send to rank 1's neighbour fails, in a
  // process with `preloaded` libraries besides.
  static std::string failing_sends(const std::string& library, const std::string& preloaded = "") {
    return format("env LD_PRELOAD={}{} {}='1 400 1'",
                  built_program(format("tests/libfailing_{}.so", library)),
                  preloaded,
                  kFailingSends);
  }

  // The lines of errors, as the program prints them.
  static std::vector<std::string> errors_of(const Outcome& outcome) {
    std::vector<std::string> errors;
    std::istringstream lines(outcome.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("error: ")) {
        errors.push_back(line);
      }
    }
    return errors;
  }

  // The metrics have each step once, in order, up to that of the newest checkpoint.
  std::size_t expect_saved_steps(const std::string& run) const {
    const std::vector<std::string> lines = metrics(run);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(nlohmann::json::parse(lines[i])["step"], i + 1);
    }
    EXPECT_EQ(CheckpointReader(checkpoint(run)).meta().step,
              static_cast<std::int64_t>(lines.size()));
    return lines.size();
  }

  // Trains "whole", whose ranks are threads and which nobody disturbs.
  void train_whole(std::size_t steps, std::vector<std::string> overrides) const {
    overrides.insert(
        overrides.end(),
        {format("--train.steps={}", steps), "--schedule.warmup=1", "--schedule.decay_ratio=0"});
    std::filesystem::remove_all(path("whole"));
    const Outcome whole = train("whole", overrides);
    ASSERT_EQ(whole.code, 0) << whole.err;
  }

  // The run is, bit by bit, that.
  void expect_undisturbed(const std::string& run,
                          std::size_t steps,
                          std::vector<std::string> overrides) const {
    train_whole(steps, std::move(overrides));
    expect_same_training(run, "whole");
  }
};

// mpirun alone gets the signal, as from a terminal: its ranks have process groups of their own.
TEST_F(MpiEndsTest, CtrlCSavesAndTheSameCommandGoesOn) {
  make_tokenizer();
  for (const std::string library : {"openmpi", "mpich"}) {
    if (!has_mpi(library)) {
      continue;
    }
    SCOPED_TRACE(library);
    const bool is_openmpi = library == "openmpi";
    std::filesystem::remove_all(path("run"));
    const std::string options = format("-n 2 {}", is_openmpi ? kPatientLauncher : "");
    const Outcome stopped = run_and("kill -INT $mpirun", options, kNoSaves, library);
    EXPECT_NE(stopped.code, kTimedOut) << stopped.err;
    EXPECT_THAT(stopped.err,
                AllOf(HasSubstr(is_openmpi ? "stopping: the launcher ends all ranks soon"
                                           : "stopping: finishing this step, then saving"),
                      HasSubstr("the same command goes on from there")));
    if (is_openmpi) {
      EXPECT_THAT(stopped.err, HasSubstr("to stop: Ctrl-C leaves the ranks 10 s"));
    }
    const std::size_t done = metrics("run").size();
    const Outcome resumed =
        shell(mpirun(options,
                     format("--run.dir=run --train.steps={} {} {}", done + 2, kSteady, kNoSaves),
                     library));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_THAT(resumed.err, ContainsRegex(format("resuming from .* after step {}\n", done)));
    EXPECT_EQ(expect_saved_steps("run"), done + 2);
    expect_undisturbed("run", done + 2, {"--parallel.ranks=2"});
    expect_no_process();
  }
}

// A step that takes more than its share of what the launcher leaves is not waited for: the one
// before is saved. The ranks are told of less than there is.
TEST_F(MpiEndsTest, CtrlCGivesUpALongStep) {
  make_tokenizer();
  bool is_given_up = false;
  // On a fast machine a step must be longer to be long. Between two steps there is none to give up,
  // nor is one whose update has begun.
  for (int batch = 1024; batch <= 16'384 && !is_given_up; batch *= 2) {
    const std::vector<std::string> long_step = {format("--train.global_batch={}", batch),
                                                "--train.microbatch=1",
                                                "--model.layers=8",
                                                "--state.preset=ddp"};
    std::filesystem::remove_all(path("run"));
    const Outcome stopped =
        run_and("kill -INT $mpirun",
                format("-n 2 {} env OMPI_MCA_odls_base_sigkill_timeout=1", kPatientLauncher),
                joined(long_step) + kNoSaves);
    EXPECT_NE(stopped.code, kTimedOut) << stopped.err;
    is_given_up =
        stopped.err.find("the step under way is given up, since there is no time to end it") !=
        std::string::npos;
    if (is_given_up) {
      EXPECT_THAT(stopped.err, HasSubstr("all ranks have saved the state after step"));
      expect_to_go_on("run", 0, long_step);
    } else {
      EXPECT_THAT(stopped.err, HasSubstr("the same command goes on from there"));
    }
    expect_no_process();
  }
  EXPECT_TRUE(is_given_up);
}

// Of four ranks in two groups, that hold the same states: whichever is lost, the others have all.
TEST_F(MpiEndsTest, SurvivorsSaveForARankOfAnotherGroupsReplica) {
  make_tokenizer();
  const std::string killing = "tessera=${tessera%/*}/tests/faults/training_with_kill; ";
  const std::string layout = format(
      "run.toml --run.dir=run --train.steps=8 {} --train.microbatch=1 {} "
      "--state.preset=hsdp@pair {} {}",
      kSteady,
      virtual_cluster(4),
      kNoSaves,
      kShortDeadline);
  // The step, the rank, and the instruction of its forward before which it is killed. mpirun, told
  // to leave the others alone, hides how they end.
  for (const std::string killed : {"6:1:0", "6:0:40"}) {
    SCOPED_TRACE(killed);
    std::filesystem::remove_all(path("run"));
    const Outcome outcome = shell(
        format("{}{}",
               killing,
               TrainingTest::mpirun("-n 4 --enable-recovery", format("{} {}", killed, layout))));
    EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("all ranks have saved the state after step 5"));
    const Outcome resumed = shell(TrainingTest::mpirun("-n 4", "train " + layout));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_THAT(resumed.err,
                AllOf(HasSubstr("step-00000005 was written when the run was interrupted"),
                      ContainsRegex("resuming from .*step-00000005 after step 5\n")));
    expect_undisturbed("run",
                       8,
                       {"--parallel.ranks=4",
                        "--train.microbatch=1",
                        virtual_cluster(4),
                        "--state.preset=hsdp@pair"});
    EXPECT_EQ(expect_saved_steps("run"), 8U);
    expect_no_process();
  }
}

// Whichever stage is lost, nobody else has its states: the run goes on from its last checkpoint, as
// well without a pipeline. All three launches wait for their deadline at one time.
TEST_F(MpiEndsTest, AStageThatIsKilledEndsThePipeline) {
  make_tokenizer();
  const std::string layout = format(
      "--train.steps=8 {} --train.microbatch=1 --model.layers=3 --checkpoint.every=2 "
      "--checkpoint.keep=0 {}",
      kSteady,
      kShortDeadline);
  std::string launches;
  for (int rank = 0; rank < 3; ++rank) {
    launches += format(
        "({}; echo $? >code{}) & ",
        TrainingTest::mpirun(
            "-n 3 --enable-recovery",
            format("6:{0}:20 run.toml --run.dir=run{0} {1} --parallel.pipeline=3", rank, layout)),
        rank);
  }
  shell(format("tessera=${{tessera%/*}}/tests/faults/training_with_kill; {}wait", launches));
  expect_no_process();
  train_whole(8, {"--train.microbatch=1", "--model.layers=3"});
  for (int rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank);
    const std::string run = format("run{}", rank);
    EXPECT_NE(read_file(path(format("code{}", rank))), format("{}\n", kTimedOut));
    std::string messages;
    for (int survivor = 0; survivor < 3; ++survivor) {
      messages += survivor == rank ? "" : message_of(survivor, run) + "\n";
    }
    EXPECT_THAT(
        messages,
        AllOf(ContainsRegex(format("rank ([0-9]+, )*{}[^0-9]", rank)), HasSubstr(", microbatch ")));
    const Outcome resumed =
        shell(TrainingTest::mpirun("-n 1", format("train run.toml --run.dir={} {}", run, layout)));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_THAT(resumed.err, ContainsRegex("resuming from .*step-0000000[24] after step [24]\n"));
    expect_same_training(run, "whole");
  }
}

// One send fails: rank 1 throws, and can still tell the others.
TEST_F(MpiEndsTest, ARankThatThrowsWaitsForThePartsOfTheOthers) {
  make_tokenizer();
  for (const std::string library : {"openmpi", "mpich"}) {
    if (!has_mpi(library)) {
      continue;
    }
    SCOPED_TRACE(library);
    std::filesystem::remove_all(path("run"));
    const std::string run =
        format("--run.dir=run --train.steps=1000 {} {} {}", kSteady, kNoSaves, kShortDeadline);
    const Outcome outcome = shell(
        mpirun("-n 1",
               format("{} : -n 1 {} $tessera train run.toml {}", run, failing_sends(library), run),
               library));
    EXPECT_NE(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
    EXPECT_THAT(outcome.err, ContainsRegex("\nerror: .*MPI_Isend: "));
    // It ends before the others, who have saved: its record tells of all parts.
    EXPECT_THAT(message_of(1),
                AllOf(HasSubstr("MPI_Isend: "),
                      HasSubstr("all ranks have saved the state after step"),
                      HasSubstr("the same command goes on from there")));
    EXPECT_GT(metrics("run").size(), 1U);
    expect_to_go_on("run");
    expect_no_process();
  }
}

// Its disk is full, too: the text says that its part is not there, and so does the next start.
TEST_F(MpiEndsTest, ARankThatThrowsSaysWhosePartIsMissing) {
  make_tokenizer();
  for (const std::string library : {"openmpi", "mpich"}) {
    if (!has_mpi(library)) {
      continue;
    }
    SCOPED_TRACE(library);
    std::filesystem::remove_all(path("run"));
    ASSERT_EQ(train("run",
                    {"--train.steps=4",
                     "--schedule.warmup=1",
                     "--schedule.decay_ratio=0",
                     "--parallel.ranks=2"})
                  .code,
              0);
    const std::string run =
        format("--run.dir=run --train.steps=1000 {} {} {}", kSteady, kNoSaves, kShortDeadline);
    const std::string failing =
        failing_sends(library, ":" + built_program("tests/libtessera_faults.so")) +
        " TESSERA_FAULTS='write path=rank-00001-model errno=28 times=all'";
    const Outcome outcome = shell(mpirun(
        "-n 1", format("{} : -n 1 {} $tessera train run.toml {}", run, failing, run), library));
    EXPECT_NE(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
    EXPECT_THAT(outcome.err, ContainsRegex("\nerror: .*MPI_Isend: "));
    EXPECT_THAT(
        message_of(1),
        AllOf(HasSubstr("MPI_Isend: "),
              ContainsRegex("the state after step [0-9]+ is not saved: .*rank-00001-model.*No "
                            "space left"),
              HasSubstr("the last good checkpoint is run/checkpoints/step-00000004: the same "
                        "command goes on from there")));
    const Outcome next = shell(mpirun("-n 2", run + " --train.steps=6", library));
    EXPECT_EQ(next.code, 0) << next.err;
    EXPECT_THAT(next.err,
                AllOf(ContainsRegex("of the 2 ranks that were to write it when the run was "
                                    "interrupted, the parts of these are missing: 1 "
                                    "\\(.*No space left"),
                      HasSubstr("resuming from run/checkpoints/step-00000004 after step 4\n")));
    EXPECT_EQ(expect_saved_steps("run"), 6U);
    expect_no_process();
  }
}

// Errors that all ranks find by themselves after they have begun.
TEST_F(MpiEndsTest, WhatAllRanksSayIsSaidOnce) {
  make_tokenizer();
  ASSERT_EQ(train("run", {"--train.steps=4"}).code, 0);

  struct Case {
    std::string library;
    std::string overrides;
    int code = 2;
    std::string text;
  };

  for (const Case& each :
       {Case{.library = "openmpi", .overrides = "--checkpoint.resume=nope", .text = "nope"},
        Case{.library = "mpich", .overrides = "--checkpoint.resume=nope", .text = "nope"},
        Case{.library = "openmpi", .overrides = "--run.seed=7", .text = "found run.seed = 7"},
        Case{.library = "mpich",
             .overrides = "--train.steps=9 --optimizer.lr=1e10 --checkpoint.keep=0",
             .code = 1,
             .text = "training has diverged"}}) {
    if (!has_mpi(each.library)) {
      continue;
    }
    SCOPED_TRACE(each.overrides);
    const Outcome outcome =
        shell(mpirun("-n 4", "--run.dir=run --train.microbatch=1 " + each.overrides, each.library));
    // MPICH's launcher may end with the signal by which it ends the others.
    EXPECT_NE(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(outcome.code == each.code || each.library == "mpich") << outcome.code;
    EXPECT_THAT(errors_of(outcome), ElementsAre(HasSubstr(each.text)));
    expect_no_process();
  }
  const Outcome other = shell(
      mpirun("-n 1", "--run.dir=run : -n 1 $tessera train run.toml --run.dir=run --train.steps=9"));
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_THAT(errors_of(other), ElementsAre(HasSubstr("was given another config than rank 0")));
  const Outcome eval = shell(TrainingTest::mpirun("-n 3", "eval run --data nosuch"));
  EXPECT_EQ(eval.code, 3) << eval.err;
  EXPECT_THAT(errors_of(eval), ElementsAre(HasSubstr("nosuch")));
  expect_no_process();
}

// The code of a launch is that of the rank that failed, not those of the others.
TEST_F(MpiEndsTest, TheRankThatFailedGivesTheExitCode) {
  make_tokenizer();
  for (const std::string library : {"openmpi", "mpich"}) {
    if (!has_mpi(library)) {
      continue;
    }
    SCOPED_TRACE(library);
    std::filesystem::remove_all(path("run"));
    write_test_file(path("ids.bin"), std::string(20'000, '\1'));
    // A part of the data is no ids any more, which the rank that comes to it first finds out.
    const Outcome outcome =
        run_and("printf '\\377\\377' | dd of=ids.bin bs=2 seek=7000 conv=notrunc 2>/dev/null",
                "-n 2",
                format("--data.files=ids.bin --data.format=tokens {}", kNoSaves),
                library);
    EXPECT_NE(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.code, 5) << outcome.err;
    EXPECT_TRUE(outcome.code == 3 || library == "mpich") << outcome.code;
    EXPECT_THAT(outcome.err,
                ContainsRegex("\nerror: ids.bin: token 7000: found id 65535, .*\\(all ranks have "
                              "saved the state after step [0-9]+"));
    expect_no_process();
  }
}

// Before the first step, while one rank reads its data and the other one waits for it.
TEST_F(MpiEndsTest, CtrlCEndsTheTokenizingOfAStart) {
  make_tokenizer();
  const std::string run = "--run.dir=run --train.steps=4";
  // A read that this test does not outlast.
  const std::string stuck = with_faults("read path=corpus.txt delay=100000", "calls");
  const Outcome outcome = shell(
      format("{} & launch=$!\n"
             "while kill -0 $launch && ! grep -q '^read ' calls; do sleep 0.05; done\n"
             "kill -INT $(cat /proc/$launch/task/$launch/children); wait $launch",
             mpirun("-n 1 " + stuck, format("{} : -n 1 $tessera train run.toml {}", run, run))));
  EXPECT_NE(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(path("run/metrics.jsonl")));
  expect_no_process();
  const Outcome next = shell(mpirun("-n 2", run));
  EXPECT_EQ(next.code, 0) << next.err;
}

// Ranks wait for a disk that is slower than they are patient: before the first step, while one
// reads its data, and after the last, while rank 0 removes what the run does not keep.
TEST_F(MpiEndsTest, RanksWaitForDataAndForRemovals) {
  make_tokenizer();
  const std::string run =
      format("--run.dir=run {} --checkpoint.every=2 --checkpoint.keep=1", kShortDeadline);
  const std::string removing =
      with_faults("remove path=.tmp-removed-step-00000010 delay=12", "removals");
  const std::string reading = with_faults("read path=corpus.txt delay=12", "reads");
  const Outcome outcome = shell(mpirun(
      "-n 1 " + removing, format("{} : -n 1 {} $tessera train run.toml {}", run, reading, run)));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(read_file(path("removals")), HasSubstr("removed-step-00000010"));
  EXPECT_THAT(read_file(path("reads")), HasSubstr("corpus.txt"));
  EXPECT_EQ(expect_saved_steps("run"), 12U);
  std::size_t left = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(path("run/checkpoints"))) {
    ++left;
  }
  EXPECT_EQ(left, 1U) << "the newest";
  expect_no_process();
}

}  // namespace
}  // namespace tessera
