// What lies beside the device's memory: the bits of a run that has all there, in less of it.

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/vfs.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Overrides = std::vector<std::string>;

const Overrides kOptimizer = {"--memory.offload_optimizer=all"};
const Overrides kParameters = {"--memory.offload_parameters=all"};
const Overrides kActivations = {"--memory.offload_activations=all"};

Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Overrides kAll = kOptimizer + kParameters + kActivations;
const Overrides kAuto = {"--memory.offload_optimizer=auto",
                         "--memory.offload_parameters=auto",
                         "--memory.offload_activations=auto"};
const Overrides kHost = {"--memory.offload_to=host"};

// Tensors of a page or more.
const Overrides kModel = {"--model.dim=64", "--model.ffn=128", "--train.steps=6"};

class OffloadTest : public TrainingTest {
 protected:
  // Files of a directory that is in memory are refused.
  void SetUp() override {
    struct statfs info{};
    if (::statfs(fs::temp_directory_path().c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC) {
      GTEST_SKIP() << fs::temp_directory_path() << " is in memory: TMPDIR may name a disk";
    }
  }

  json explained(const Overrides& overrides) {
    const Outcome outcome =
        tessera(Overrides{"explain", "run.toml", "--json"} + kModel + overrides);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out).at("memory");
  }

  void expect_same(const std::string& run,
                   const Overrides& overrides,
                   const std::string& expected) {
    SCOPED_TRACE(run);
    const Outcome outcome = train(run, kModel + overrides);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_same_training(run, expected);
  }
};

TEST_F(OffloadTest, HasTheBitsOfARunWithout) {
  ASSERT_EQ(train("none", kModel).code, 0);
  int number = 0;
  for (const Overrides& offload :
       {kOptimizer, kParameters, kActivations, kAll, kAll + kHost, kOptimizer + kHost}) {
    expect_same(format("run-{}", ++number), offload, "none");
  }
  for (const std::string recompute : {"full", "selective"}) {
    expect_same(recompute, kAll + Overrides{"--memory.recompute=" + recompute}, "none");
  }
}

// Pairs of layouts, not all of them with all.
TEST_F(OffloadTest, HasTheBitsOfEachLayout) {
  int number = 0;
  for (const Overrides& layout : std::vector<Overrides>{
           {"--train.dtype=bf16", "--optimizer.moments=bf16"},
           {"--parallel.ranks=2", "--state.preset=fsdp", "--train.microbatch=1"},
           {"--parallel.ranks=2", "--state.preset=fsdp", "--train.microbatch=2"},
           {"--parallel.ranks=2", "--state.preset=zero1", "--train.dtype=bf16"},
           {"--parallel.ranks=2", "--parallel.tensor=2", "--model.tied=true"},
           {"--parallel.ranks=2", "--parallel.context=2", "--context.kind=ring"},
           {"--parallel.ranks=2", "--parallel.pipeline=2", "--train.microbatch=1"},
           {"--parallel.ranks=2",
            "--parallel.pipeline=2",
            "--train.microbatch=1",
            "--pipeline.schedule=zb-v",
            "--pipeline.chunks=2",
            "--model.layers=4"},
           {"--validation.every=2", "--data.validation_share=0.2"}}) {
    const std::string none = format("none-{}", ++number);
    const Outcome outcome = train(none, kModel + layout);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_same(format("file-{}", number), layout + kAll, none);
    expect_same(format("host-{}", number), layout + kAll + kHost, none);
  }
}

TEST_F(OffloadTest, TakesWhatItSays) {
  const json here = explained({});
  const json there = explained(kAll);
  EXPECT_EQ(here.at("file").at("bytes"), 0);
  const auto needed = [](const json& memory) { return memory.at("needed").get<std::int64_t>(); };
  EXPECT_LT(needed(there), needed(here));
  EXPECT_GT(there.at("file").at("stored_per_step"), 0);
  // The host's memory is the same as the device's on a CPU.
  EXPECT_GT(needed(explained(kAll + kHost)), needed(there));
  ASSERT_EQ(train("run", kModel + kAll).code, 0);
  EXPECT_EQ(json::parse(metrics("run").back()).at("memory_bytes"), there.at("needed"));
  const Outcome text = tessera(Overrides{"explain", "run.toml"} + kModel + kOptimizer);
  EXPECT_THAT(text.out,
              testing::ContainsRegex("\n  file +[0-9.]+ KiB  \\([0-9,]+ bytes; a step "
                                     "fetches [0-9.]+ KiB and stores [0-9.]+ KiB\\)\n"));
}

// As the system counts what processes read from disks and write to them.
TEST_F(OffloadTest, MovesWhatItSays) {
  const Overrides model = {"--model.dim=128", "--model.ffn=256"};
  const auto moved = [&](int steps) {
    rusage before{};
    rusage after{};
    ::getrusage(RUSAGE_CHILDREN, &before);
    const std::string run = format("steps-{}", steps);
    EXPECT_EQ(train(run, kModel + model + kAll + Overrides{format("--train.steps={}", steps)}).code,
              0);
    ::getrusage(RUSAGE_CHILDREN, &after);
    return std::pair(after.ru_inblock - before.ru_inblock, after.ru_oublock - before.ru_oublock);
  };
  const json file = explained(model + kAll).at("file");
  moved(2);  // after which the program itself is in memory
  const auto [read, written] = moved(4);
  const auto [more_read, more_written] = moved(24);
  constexpr double kStepsMore = 20;
  constexpr double kBlock = 512;
  const auto planned = [&](const char* key) { return file.at(key).get<double>(); };
  const auto a_step = [&](std::int64_t blocks) {
    return static_cast<double>(blocks) * kBlock / kStepsMore;
  };
  EXPECT_NEAR(a_step(more_read - read) / planned("fetched_per_step"), 1.0, 0.01);
  EXPECT_NEAR(a_step(more_written - written) / planned("stored_per_step"), 1.0, 0.01);
}

// A run that does not fit is told the least that it would have to offload.
TEST_F(OffloadTest, IsAdvised) {
  const Overrides full = {"--memory.recompute=full", "--train.microbatch=1"};
  const auto needed = [&](const Overrides& offload) {
    return explained(full + offload).at("needed").get<std::int64_t>();
  };
  const auto advice = [&](std::int64_t limit) {
    const Outcome outcome =
        train("refused", kModel + full + Overrides{format("--memory.limit_bytes={}", limit)});
    EXPECT_EQ(outcome.code, 4);
    return outcome.err;
  };
  EXPECT_THAT(
      advice(needed(kOptimizer)),
      testing::ContainsRegex("\n  memory.offload_optimizer = \"auto\" needs [^\n]*, which fits\n"));
  EXPECT_THAT(advice(needed(kOptimizer + kParameters)),
              testing::ContainsRegex(
                  "\n  memory.offload_optimizer = \"auto\" and memory.offload_parameters = "
                  "\"auto\" needs [^\n]*, which fits\n"));
  const Overrides advised =
      full + kAuto +
      Overrides{"--memory.offload_activations=off",
                format("--memory.limit_bytes={}", needed(kOptimizer + kParameters))};
  const Outcome outcome = train("advised", kModel + advised);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

// As much as has no room, chosen once, with the bits of a run without a limit.
TEST_F(OffloadTest, ChoosesWhatHasNoRoom) {
  const Overrides model = {"--model.layers=4", "--train.global_batch=8", "--train.microbatch=4"};
  const Overrides stages = {"--parallel.ranks=2", "--parallel.pipeline=2"};
  ASSERT_EQ(train("none", kModel + model).code, 0);
  ASSERT_EQ(train("stages", kModel + model + stages).code, 0);
  const auto needed = [&](const Overrides& more) {
    return explained(model + more).at("needed").get<std::int64_t>();
  };
  const std::int64_t most = needed({});
  const std::int64_t least = needed(kAll + Overrides{"--memory.recompute=full"});
  int number = 0;
  for (const Overrides& keys : {kAuto,
                                kAuto + Overrides{"--memory.recompute=none"},
                                kAuto + Overrides{"--memory.recompute=selective"},
                                kAuto + stages}) {
    for (const int percent : {85, 60}) {
      const bool has_stages = keys.size() > kAuto.size() + 1;
      const std::int64_t limit =
          has_stages ? most * percent / 150 : least + (most - least) * percent / 100;
      const std::string run = format("auto-{}", ++number);
      const Overrides limited =
          kModel + model + keys + Overrides{format("--memory.limit_bytes={}", limit)};
      SCOPED_TRACE(::testing::PrintToString(limited));
      const Outcome outcome = train(run, limited);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      expect_same_training(run, has_stages ? "stages" : "none");
      const json last = json::parse(metrics(run).back());
      EXPECT_LE(last.at("memory_bytes").get<std::int64_t>(), limit);
      EXPECT_THAT(outcome.err, HasSubstr("memory.offload_activations = \"auto\": "));
      EXPECT_THAT(train(run, limited + Overrides{"--train.steps=7"}).err,
                  HasSubstr(", as an earlier start chose"));
    }
  }
}

TEST_F(OffloadTest, GoesOnFromEitherSide) {
  const Overrides more = {"--model.dim=64", "--model.ffn=128", "--train.steps=9"};
  ASSERT_EQ(train("whole", more + Overrides{"--schedule.decay_ratio=0"}).code, 0);
  for (const auto& [run, first, then] :
       {std::tuple("to-files", Overrides{}, kAll), std::tuple("from-files", kAll, Overrides{})}) {
    SCOPED_TRACE(run);
    ASSERT_EQ(
        train(run, more + first + Overrides{"--train.steps=5", "--schedule.decay_ratio=0"}).code,
        0);
    const Outcome outcome = train(run, more + then + Overrides{"--schedule.decay_ratio=0"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("memory.offload")));
    EXPECT_EQ(differing_tensors(checkpoint(run), checkpoint("whole")), std::vector<std::string>{});
  }
}

// Saved while it trains, too, without a copy of what the file is there to hold.
TEST_F(OffloadTest, SavesFromItsFile) {
  const Overrides saving = {"--checkpoint.every=2", "--checkpoint.keep=0"};
  ASSERT_EQ(train("none", kModel + saving).code, 0);
  ASSERT_EQ(train("file", kModel + saving + kAll).code, 0);
  for (const int step : {2, 4, 6}) {
    EXPECT_EQ(differing_tensors(checkpoint("none", step), checkpoint("file", step)),
              std::vector<std::string>{});
  }
  EXPECT_EQ(explained(saving + kAll).at("checkpoint"), 0);
}

TEST_F(OffloadTest, LeavesNothingWhereItIsKilled) {
  fs::create_directory(path("disk"));
  Process process = start_training(
      "run", kModel + kAll + Overrides{"--train.steps=100000", "--memory.offload_dir=disk"});
  ASSERT_TRUE(process.wait_for("step 3/"));
  // Files that are read and written past the page cache.
  std::size_t direct = 0;
  for (const auto& entry : fs::directory_iterator(format("/proc/{}/fd", process.id()))) {
    std::error_code gone;
    const std::string file = fs::read_symlink(entry.path(), gone).string();
    if (file.starts_with(path("disk").string())) {
      std::ifstream info(
          format("/proc/{}/fdinfo/{}", process.id(), entry.path().filename().string()));
      std::string word;
      while (info >> word && word != "flags:") {
      }
      info >> word;
      direct += (std::stoul(word, nullptr, 8) & 040000U) != 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(direct, 1U);
  process.send(SIGKILL);
  EXPECT_EQ(process.finish().code, 128 + SIGKILL);
  EXPECT_TRUE(fs::is_empty(path("disk")));
}

TEST_F(OffloadTest, DoesWithoutRings) {
  ASSERT_EQ(train("none", kModel).code, 0);
  std::string command = "train run.toml --run.dir=threads";
  for (const std::string& override : kModel + kAll) {
    command += " " + override;
  }
  const Outcome outcome = shell(with_faults("ring times=all errno=1") + " \"$tessera\" " + command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("io_uring: Operation not permitted (containers often forbid it): threads "
                        "read and write what is offloaded"));
  expect_same_training("threads", "none");
}

// Slow and failing disks: the same bits, or an error that names the file.
TEST_F(OffloadTest, WaitsForSlowDisksAndSaysWhatFailed) {
  ASSERT_EQ(train("none", kModel).code, 0);
  fs::create_directory(path("disk"));
  std::string keys;
  for (const std::string& override : kModel + kAll + Overrides{"--memory.offload_dir=disk"}) {
    keys += " " + override;
  }
  const auto run = [&](const std::string& name, const std::string& faults) {
    return shell(with_faults("ring times=all errno=1; " + faults) +
                 " \"$tessera\" train run.toml --run.dir=" + name + keys);
  };
  ASSERT_EQ(run("slow",
                "write path=/disk/ times=40 delay=0.01; read path=/disk/ after=7 times=40 "
                "delay=0.01")
                .code,
            0);
  expect_same_training("slow", "none");
  const Outcome full = run("full", "resize path=/disk/ errno=28");
  EXPECT_EQ(full.code, 5) << full.err;
  EXPECT_THAT(
      full.err,
      AllOf(HasSubstr("memory.offload_dir: cannot take "), HasSubstr(" is free: No space")));
  const Outcome failed = run("failed", "write path=/disk/ after=9 errno=5");
  EXPECT_EQ(failed.code, 5) << failed.err;
  EXPECT_THAT(failed.err,
              AllOf(HasSubstr("cannot write the file of memory.offload_dir in disk: Input/output"),
                    HasSubstr(": store")));
}

// Parameters that the update gathers stay where they are gathered to.
TEST_F(OffloadTest, SaysWhatHasNoEffect) {
  const Overrides gathered = {"--parallel.ranks=2", "--state.preset=zero1", "--train.microbatch=1"};
  const std::string said = "memory.offload_parameters has no effect in this run";
  EXPECT_THAT(train("zero1", kModel + gathered + kParameters).err, HasSubstr(said));
  EXPECT_THAT(train("fsdp", kModel + gathered + kParameters + Overrides{"--state.preset=fsdp"}).err,
              Not(HasSubstr(said)));
  const Outcome small =
      tessera(Overrides{"explain", "run.toml", "--data.sequence_length=2", "--train.microbatch=1"} +
              kActivations);
  EXPECT_THAT(small.out, HasSubstr("memory.offload_activations has no effect in this run"));
}

TEST_F(OffloadTest, RefusesWhatMakesNoSense) {
  const auto refused = [&](const Overrides& overrides) {
    const Outcome outcome = train("refused", kModel + overrides);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refused(kHost), HasSubstr("memory.offload_to: has no effect without"));
  EXPECT_THAT(refused({"--memory.offload_dir=."}),
              HasSubstr("memory.offload_dir: has no effect without"));
  EXPECT_THAT(refused(kAll + kHost + Overrides{"--memory.offload_dir=."}),
              HasSubstr("memory.offload_dir: has no effect without"));
  EXPECT_THAT(refused(kAll + Overrides{"--memory.offload_dir=none"}),
              HasSubstr("memory.offload_dir: there is no directory none"));
  EXPECT_THAT(refused({"--memory.offload_optimizer=some"}), HasSubstr("expected \"off\""));
  if (fs::is_directory("/dev/shm")) {
    EXPECT_THAT(refused(kAll + Overrides{"--memory.offload_dir=/dev/shm"}),
                HasSubstr("is in memory (tmpfs)"));
  }
}

}  // namespace
}  // namespace tessera
