// Runs whose ranks are processes, started by mpirun: they compute what ranks that are threads
// compute, and end as a launch has to.

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tests/cli/mpi_test.h"
#include "tests/cli/process.h"
#include "tests/distributed/failing_mpi.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

struct Layout {
  std::string name;
  int ranks = 0;
  std::vector<std::string> overrides;
};

TEST_F(MpiTest, ComputesTheBitsOfThreads) {
  const auto expect_bits_of_threads = [&](const Layout& layout, const std::string& library) {
    SCOPED_TRACE(layout.name + " over " + library);
    const std::string threads = "threads-" + layout.name;
    if (!std::filesystem::exists(path(threads))) {
      std::vector<std::string> overrides = layout.overrides;
      overrides.push_back(format("--parallel.ranks={}", layout.ranks));
      const Outcome outcome = train(threads, overrides);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
    }
    const std::string processes = library + "-" + layout.name;
    const Outcome outcome = shell(mpirun(format("-n {}", layout.ranks),
                                         joined(layout.overrides) + "--run.dir=" + processes,
                                         library));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_same_training(processes, threads);
  };
  const Layout two = {"two", 2, {"--train.microbatch=2"}};
  const Layout quantized = {"zeropp",
                            4,
                            {"--train.microbatch=1",
                             virtual_cluster(4),
                             "--state.preset=zeropp",
                             "--state.wire_block=32"}};
  const Layout pipeline = {"pipeline", 2, {"--train.microbatch=1", "--parallel.pipeline=2"}};
  const Layout ring = {
      "ring",
      4,
      {"--train.microbatch=1", "--parallel.context=4", "--context.kind=ring", virtual_cluster(4)}};
  for (const Layout& layout : {two,
                               quantized,
                               pipeline,
                               Layout{"zbv",
                                      4,
                                      {"--train.microbatch=1",
                                       "--parallel.pipeline=2",
                                       "--pipeline.schedule=zb-v",
                                       "--state.preset=fsdp"}},
                               Layout{"four", 4, {"--train.microbatch=1"}},
                               ring,
                               Layout{"tensor", 2, {"--train.microbatch=2", "--parallel.tensor=2"}},
                               Layout{"topo",
                                      4,
                                      {"--train.microbatch=2",
                                       "--parallel.tensor=2",
                                       "--train.dtype=bf16",
                                       virtual_cluster(4),
                                       "--state.preset=topo"}}}) {
    expect_bits_of_threads(layout, "openmpi");
  }
  if (has_mpi("mpich")) {
    expect_bits_of_threads(two, "mpich");
    expect_bits_of_threads(quantized, "mpich");
    expect_bits_of_threads(pipeline, "mpich");
    expect_bits_of_threads(ring, "mpich");
  }
}

TEST_F(MpiTest, RefusesAnotherNumberOfRanks) {
  const Outcome outcome =
      shell(mpirun("-n 2", "--run.dir=run --parallel.ranks=4 --train.microbatch=1"));
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr("parallel.ranks: found 4, but the launcher started 2 processes: start 4"));
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

// Not once for each of hundreds of ranks.
TEST_F(MpiTest, WhatAllRanksRefuseIsSaidOnce) {
  make_tokenizer();

  for (const char* const overrides :
       {"--train.stepz=3",
        "--parallel.ranks=7 --train.global_batch=7 --train.microbatch=1",
        "--run.dir=bad --data.files=nothing.txt",
        "--run.dir=bad --memory.limit_bytes=1000"}) {
    const Outcome outcome = shell(mpirun("-n 3", format("--train.global_batch=6 {}", overrides)));
    EXPECT_NE(outcome.code, 0);
    EXPECT_EQ(count(outcome.err, "error: "), 1U) << outcome.err;
  }
  // An error of one rank alone is said, too, and ends the others.
  const Outcome one =
      shell(mpirun("-n 1", "--run.dir=one : -n 1 $tessera train run.toml --train.stepz=3"));
  EXPECT_NE(one.code, 0);
  EXPECT_NE(one.code, kTimedOut);
  EXPECT_EQ(count(one.err, "error: "), 1U) << one.err;
  EXPECT_THAT(one.err, HasSubstr("train.stepz"));
}

TEST_F(MpiTest, RefusesDifferentConfigs) {
  make_tokenizer();
  const Outcome outcome =
      shell(mpirun("-n 1",
                   "--run.dir=run --optimizer.lr=1e-3 : -n 1 $tessera train run.toml "
                   "--run.dir=run --optimizer.lr=2e-3"));
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr("rank 1 was given another config than rank 0: optimizer.lr (0.001, now "
                        "0.002)"));
}

// Before anything else is done with what a config says.
TEST_F(MpiTest, RefusesDifferentFiles) {
  make_tokenizer();
  const Outcome outcome =
      shell(mpirun("-n 1",
                   "--run.dir=run : -n 1 $tessera train run.toml --run.dir=other "
                   "--data.files=nothing.txt"));
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("rank 1 was given another config than rank 0: "),
                    HasSubstr("nothing.txt"),
                    HasSubstr("run.dir")));
}

// The same names on a machine where other files have them.
TEST_F(MpiTest, RefusesOtherFilesOfTheSameNames) {
  make_tokenizer();
  ASSERT_EQ(shell("mkdir other && cp run.toml tokenizer.json other/ && "
                  "head -n 100 corpus.txt > other/corpus.txt")
                .code,
            0);
  const std::string overrides = format("--run.dir={}", path("run").string());
  const Outcome outcome = shell(
      mpirun("-n 1", format("{0} : -n 1 -wdir other $tessera train run.toml {0}", overrides)));
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 has other files than rank 0: training data: "));
  EXPECT_FALSE(std::filesystem::exists(path("run/metrics.jsonl")));
}

// By itself mpirun ends the survivors; told not to, it hides their exit codes.
TEST_F(MpiTest, ARankThatIsKilledEndsTheRun) {
  make_tokenizer();
  const Outcome ended = run_and("kill -KILL $rank", "-n 2", kShortDeadline);
  EXPECT_EQ(ended.code, 128 + SIGKILL) << ended.err;
  std::filesystem::remove_all(path("run"));
  const Outcome survived = run_and(
      "wait_for run/checkpoints/step-00000002; kill -KILL $rank",
      "-n 4 --enable-recovery",
      format("{} --train.microbatch=1 --checkpoint.every=2 --checkpoint.keep=0", kShortDeadline));
  EXPECT_NE(survived.code, kTimedOut) << survived.err;
  // One may wait for another that waits for rank 1, and may be told of that.
  bool named = false;
  for (const int survivor : {0, 2, 3}) {
    const std::string message = message_of(survivor);
    EXPECT_THAT(message,
                ContainsRegex("^[a-z_]+ of [0-9]+ bytes.*: no answer within 10 s; arrived: rank "
                              "[0-9, ]+; missing: rank [0-9, ]+"
                              "(; ((of the state after step [0-9]+ the parts of these ranks are "
                              "missing: [0-9, ]+(; on this one [^;]*)?; )?the (last good|newest) "
                              "checkpoint is [^ ]+|all "
                              "ranks have saved the state after step [0-9]+): the same command "
                              "goes on from "
                              "there)? "
                              "([(][a-z_]+ of [^()]*; missing: rank [0-9, ]+[)] )*"
                              "[(](segment [a-z]+.*, instruction [0-9]+: [a-z_]+|between two "
                              "steps)[)]"))
        << "rank " << survivor;
    const std::size_t missing = message.find("missing: rank ");
    named = named ||
            (missing != std::string::npos &&
             message.substr(missing, message.find(" (") - missing).find('1') != std::string::npos);
  }
  EXPECT_TRUE(named) << "nobody says that rank 1 is missing";
  int checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("run/checkpoints"))) {
    if (entry.path().filename().string().starts_with("step-")) {
      const Outcome verified = tessera({"checkpoint", "verify", entry.path().string()});
      EXPECT_EQ(verified.code, 0) << verified.err;
      ++checkpoints;
    }
  }
  EXPECT_GT(checkpoints, 0);
  expect_no_process();
}

// What it sends no longer arrives: both ranks save the last step that ended.
TEST_F(MpiTest, ARankThatLosesItsNetworkSavesItsPart) {
  make_tokenizer();
  const Outcome outcome =
      shell(mpirun(format("-n 2 -x LD_PRELOAD={} -x {}='1 400'",
                          built_program("tests/libfailing_openmpi.so"),
                          kFailingSends),
                   format("--run.dir=run --train.steps=1000 --schedule.warmup=1 "
                          "--schedule.decay_ratio=0 --checkpoint.every=0 {}",
                          kShortDeadline)));
  EXPECT_NE(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
  // It cannot say so either: rank 0 saves its part when mpirun ends it.
  EXPECT_THAT(message_of(1), HasSubstr("MPI_Isend: "));
  EXPECT_GT(metrics("run").size(), 1U);
  expect_to_go_on("run");
  expect_no_process();
}

// All is done and saved except MPI's own end, from which a rank may not come back whose peer is
// gone.
TEST_F(MpiTest, ARankThatIsStuckAtTheEndEndsTheRun) {
  make_tokenizer();
  const Outcome outcome = shell(mpirun(format("-n 2 -x LD_PRELOAD={} -x {}=0",
                                              built_program("tests/libfailing_openmpi.so"),
                                              kStuckInFinalize),
                                       format("--run.dir=run {}", kShortDeadline)));
  EXPECT_NE(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
  // Rank 0 says so, and mpirun ends the other.
  EXPECT_THAT(
      message_of(0),
      HasSubstr("rank 0 is done, and has waited 20 s for all processes of the launch to end"));
  EXPECT_EQ(metrics("run").size(), 12U);
  EXPECT_EQ(tessera({"checkpoint", "verify", checkpoint("run").string()}).code, 0);
  expect_no_process();
}

TEST_F(MpiTest, ARankThatHangsEndsTheRun) {
  make_tokenizer();
  const Outcome outcome = run_and("kill -STOP $rank", "-n 2", kShortDeadline);
  EXPECT_NE(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
  EXPECT_THAT(message_of(0), HasSubstr("missing: rank 1"));
  expect_no_process();
}

// Any rank may be asked.
TEST_F(MpiTest, SignalsSaveAndStop) {
  make_tokenizer();
  const Outcome outcome = run_and(
      "kill -USR1 $rank\n"
      "while kill -0 $launch && ! ls run/checkpoints | grep -q ^step-; do sleep 0.05; done\n"
      "kill -USR2 $rank",
      "-n 2",
      "--checkpoint.every=0 --checkpoint.keep=0");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the same command goes on from there"));
  int checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("run/checkpoints"))) {
    const Outcome verified = tessera({"checkpoint", "verify", entry.path().string()});
    EXPECT_EQ(verified.code, 0) << verified.err;
    ++checkpoints;
  }
  EXPECT_EQ(checkpoints, 2);
}

// A rank that was stopped and goes on finds the run ended: both save the last step.
TEST_F(MpiTest, ARankThatWasStuckSavesItsPart) {
  make_tokenizer();
  const Outcome outcome = run_and(
      "kill -STOP $rank\n"
      "while kill -0 $launch && ! ls run/checkpoints/.tmp-step-*/part-00000-of-00002.json; do\n"
      "  sleep 0.05\n"
      "done\n"
      "kill -CONT $rank",
      "-n 2",
      format("{} --checkpoint.every=0", kShortDeadline));
  EXPECT_NE(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
  EXPECT_THAT(message_of(0), HasSubstr("all ranks have saved the state after step"));
  expect_to_go_on("run");
}

// mpirun ends the survivor a second later, which has all states, too.
TEST_F(MpiTest, ASurvivorSavesForTheRankThatWasKilled) {
  make_tokenizer();
  for (const char* const killed : {"$rank", "$first"}) {
    SCOPED_TRACE(killed);
    std::filesystem::remove_all(path("run"));
    const Outcome outcome =
        run_and(format("kill -KILL {}", killed), "-n 2", "--checkpoint.every=0 --state.preset=ddp");
    EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("all ranks have saved the state after step"));
    expect_to_go_on("run", std::string_view(killed) == "$first" ? 1 : 0);
    // Each step once, in order, whoever wrote its line.
    const std::vector<std::string> lines = metrics("run");
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(nlohmann::json::parse(lines[i])["step"], i + 1);
    }
    EXPECT_TRUE(std::filesystem::exists(checkpoint("run", static_cast<std::int64_t>(lines.size())) /
                                        "tokenizer.json"));
  }
}

// Nobody waits for the deadline, which is longer than the launch may take.
TEST_F(MpiTest, SigtermEndsAStuckCollective) {
  make_tokenizer();
  const Outcome outcome = run_and(
      "kill -STOP $rank; sleep 6; kill -TERM $first", "-n 2", "--comm.deadline_seconds=1000");
  EXPECT_NE(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.code, kTimedOut) << outcome.err;
  EXPECT_THAT(message_of(0),
              AllOf(HasSubstr("in a run that was asked to stop"), HasSubstr("missing: rank 1")));
  expect_no_process();
}

}  // namespace
}  // namespace tessera
