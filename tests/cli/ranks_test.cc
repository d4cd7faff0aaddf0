// Runs of several ranks from outside: what they compute does not depend on how they are laid out,
// and how they end.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/units.h"
#include "tessera/config/config.h"
#include "tessera/dataset/run_data.h"
#include "tessera/mesh/traffic.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/run_layout.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/resolve_layout.h"
#include "tessera/runtime/launcher.h"
#include "tessera/state/training_state.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/trainer.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

struct Layout {
  std::string name;
  std::vector<std::string> overrides;
};

// One microbatch a step over data ranks alone: all of them are bitwise alike.
std::vector<Layout> data_layouts() {
  const auto of = [](int ranks, const std::string& state) {
    return std::vector<std::string>{format("--parallel.ranks={}", ranks),
                                    format("--train.microbatch={}", 8 / ranks),
                                    virtual_cluster(ranks),
                                    "--state.preset=" + state,
                                    "--state.wire_param=full",
                                    "--state.wire_grad=full"};
  };
  return {{"ddp", of(4, "ddp")},
          {"zero1", of(4, "zero1")},
          {"fsdp", of(4, "fsdp")},
          {"sgo", of(4, "shard-grad-op")},
          {"hsdp", of(4, "hsdp@pair")},
          {"topo", of(4, "topo")}};
}

// Whatever a run can be laid out as: close to each other.
std::vector<Layout> all_layouts() {
  std::vector<Layout> layouts = data_layouts();
  const auto add = [&](const std::string& name, std::vector<std::string> overrides) {
    layouts.push_back({name, std::move(overrides)});
  };
  add("one", {"--train.microbatch=8"});
  add("two", {"--parallel.ranks=2", "--train.microbatch=2"});
  add("eight",
      {"--parallel.ranks=8", "--train.microbatch=1", virtual_cluster(8), "--state.preset=zero2"});
  add("tensor", {"--parallel.ranks=2", "--parallel.tensor=2", "--train.microbatch=4"});
  add("both", {"--parallel.ranks=4", "--parallel.tensor=2", "--train.microbatch=4"});
  add("context", {"--parallel.ranks=2", "--parallel.context=2", "--train.microbatch=8"});
  add("ulysses",
      {"--parallel.ranks=4",
       "--parallel.context=2",
       "--context.kind=ulysses",
       "--train.microbatch=4"});
  add("ring",
      {"--parallel.ranks=4",
       "--parallel.context=4",
       "--context.kind=ring",
       "--train.microbatch=4",
       virtual_cluster(4),
       "--context.inner=pair"});
  // A second copy of the weights; its wires are those of full precision.
  add("zeropp",
      {"--parallel.ranks=8",
       "--train.microbatch=1",
       virtual_cluster(8),
       "--state.preset=zeropp",
       "--state.wire_param=full",
       "--state.wire_grad=full"});
  add("hsdp-node",
      {"--parallel.ranks=8",
       "--train.microbatch=1",
       virtual_cluster(8),
       "--state.preset=hsdp@node"});
  add("whole-sequences",
      {"--parallel.ranks=4",
       "--parallel.tensor=2",
       "--parallel.sequence_parallel=false",
       "--train.microbatch=4",
       virtual_cluster(4),
       "--state.preset=topo",
       "--state.wire_param=full",
       "--state.wire_grad=full"});
  return layouts;
}

// As a program that calls the library.
void train_model(const RunConfig& config,
                 const std::function<void(std::int64_t rank, std::int64_t step)>& before_step) {
  const RunConfig resolved = resolve(config);
  tessera::train(resolved, resolve_model(resolved), {.before_step = before_step});
}

class RanksTest : public TrainingTest {
 protected:
  Outcome train_layout(const std::string& run, const Layout& layout, int steps) const {
    std::vector<std::string> overrides = layout.overrides;
    overrides.insert(overrides.end(),
                     {"--train.global_batch=8",
                      format("--train.steps={}", steps),
                      "--schedule.decay_ratio=0",
                      "--schedule.warmup=1"});
    return train(run, overrides);
  }

  std::vector<double> losses(const std::string& run) const {
    std::vector<double> result;
    for (const std::string& line : metrics(run)) {
      result.push_back(nlohmann::json::parse(line).at("loss"));
    }
    return result;
  }

  void expect_close(const std::string& run, const std::string& expected) const {
    const std::vector<double> found = losses(run);
    const std::vector<double> wanted = losses(expected);
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], wanted[i], (i == 0 ? 1e-6 : 1e-4) * wanted[i])
          << run << ": step " << i + 1;
    }
  }

  std::vector<std::string> entries(const std::string& directory) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path(directory))) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
};

TEST_F(RanksTest, LayoutsComputeTheSame) {
  for (const Layout& layout : all_layouts()) {
    const Outcome outcome = train_layout(layout.name, layout, 10);
    ASSERT_EQ(outcome.code, 0) << layout.name << ": " << outcome.err;
    expect_close(layout.name, all_layouts().front().name);
  }
  for (const Layout& layout : data_layouts()) {
    EXPECT_EQ(numbers(layout.name), numbers("ddp")) << layout.name;
    EXPECT_THAT(differing_tensors(checkpoint(layout.name), checkpoint("ddp")), IsEmpty())
        << layout.name;
  }
}

// Steps too small to move a weight of f32 by one bit leave what the run started from. Each run's
// parts make the same files for others.
TEST_F(RanksTest, InitialWeightsAreTheSameUnderEveryLayout) {
  for (const Layout& layout : all_layouts()) {
    Layout still = layout;
    still.overrides.insert(still.overrides.end(), {"--optimizer.lr=1e-30"});
    const Outcome outcome = train_layout(layout.name, still, 1);
    ASSERT_EQ(outcome.code, 0) << layout.name << ": " << outcome.err;
    std::vector<std::string> weights;
    for (const std::string& name :
         differing_tensors(checkpoint(layout.name), checkpoint(all_layouts().front().name))) {
      if (name.find("moment") == std::string::npos) {
        weights.push_back(name);
      }
    }
    EXPECT_THAT(weights, IsEmpty()) << layout.name;
    const Outcome exported = tessera(
        {"checkpoint", "export", checkpoint(layout.name).string(), "weights-" + layout.name});
    ASSERT_EQ(exported.code, 0) << exported.err;
    const auto file = [&](const std::string& name) {
      return read_file(path("weights-" + name) / "model.safetensors");
    };
    EXPECT_TRUE(file(layout.name) == file(all_layouts().front().name)) << layout.name;
  }
}

// Each layout's checkpoint goes on under itself and two others, and each layout goes on from as
// many.
TEST_F(RanksTest, ACheckpointGoesOnUnderEveryLayout) {
  constexpr std::array<std::size_t, 3> kDistances = {0, 1, 7};
  const std::vector<Layout> layouts = all_layouts();
  for (const Layout& layout : layouts) {
    ASSERT_EQ(train_layout("whole-" + layout.name, layout, 6).code, 0) << layout.name;
  }
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Layout& from = layouts[i];
    ASSERT_EQ(train_layout("from-" + from.name, from, 3).code, 0) << from.name;
    for (const std::size_t distance : kDistances) {
      const Layout& to = layouts[(i + distance) % layouts.size()];
      const std::string run = format("{}-to-{}", from.name, to.name);
      std::filesystem::copy(
          path("from-" + from.name), path(run), std::filesystem::copy_options::recursive);
      const Outcome outcome = train_layout(run, to, 6);
      ASSERT_EQ(outcome.code, 0) << run << ": " << outcome.err;
      if (from.name == to.name) {
        expect_same_training(run, "whole-" + to.name);
      } else {
        expect_close(run, "whole-" + to.name);
      }
    }
  }
  // Among layouts that are bitwise alike it is as if the run had never been stopped.
  int num_alike = 0;
  for (const Layout& from : data_layouts()) {
    for (const Layout& to : data_layouts()) {
      const std::string run = format("{}-to-{}", from.name, to.name);
      if (std::filesystem::exists(path(run))) {
        ++num_alike;
        EXPECT_EQ(numbers(run), numbers("whole-ddp")) << run;
      }
    }
  }
  EXPECT_EQ(num_alike, 6 + 5);
}

// Weights that travel quantized into a second copy are read from there until the next update.
TEST_F(RanksTest, AQuantizedSecondCopyGoesOn) {
  const Layout layout = {"zeropp",
                         {"--parallel.ranks=8",
                          "--train.microbatch=1",
                          virtual_cluster(8),
                          "--state.preset=zeropp",
                          "--state.wire_block=32"}};
  ASSERT_EQ(train_layout("whole", layout, 6).code, 0);
  ASSERT_EQ(train_layout("parts", layout, 3).code, 0);
  ASSERT_EQ(train_layout("parts", layout, 6).code, 0);
  expect_same_training("parts", "whole");
}

// The debug model on real text, CMake's manual: 80 steps of 512 tokens.
TEST_F(RanksTest, QuantizedWiresEndWhereFullPrecisionDoes) {
  ASSERT_EQ(shell("cmake --help-full > manual.txt").code, 0);
  write_test_file(path("debug.toml"),
                  R"([model]
name = "llama3"
flavor = "debug"
[tokenizer]
path = "debug-tokenizer.json"
train_vocab = 2048
[data]
files = ["manual.txt"]
sequence_length = 64
[train]
steps = 80
global_batch = 8
microbatch = 1
[optimizer]
lr = 3e-3
[schedule]
warmup = 15
decay_ratio = 0.4
[parallel]
ranks = 8
)");
  const auto end_of = [&](const std::string& run, const std::vector<std::string>& overrides) {
    std::vector<std::string> command = {
        "train", "debug.toml", "--run.dir=" + run, virtual_cluster(8)};
    command.insert(command.end(), overrides.begin(), overrides.end());
    const Outcome outcome = tessera(command);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<double> steps = losses(run);
    EXPECT_EQ(steps.size(), 80U);
    std::vector<double> last(steps.end() - 20, steps.end());
    std::ranges::sort(last);
    return (last[9] + last[10]) / 2;
  };
  const double full = end_of("full", {"--state.preset=fsdp"});
  EXPECT_LT(full, 5.6) << "nothing was learned";
  // A second copy of the weights in each node.
  const double quantized = end_of(
      "quantized", {"--state.preset=zeropp", "--state.wire_param=int8", "--state.wire_grad=int4"});
  EXPECT_NE(quantized, full);
  EXPECT_NEAR(quantized, full, 0.02 * full);
}

TEST_F(RanksTest, StopsAndGoesOn) {
  const std::vector<std::string> overrides = {
      "--train.steps=200", "--parallel.ranks=4", "--train.microbatch=1"};
  Process process = start_training("a", overrides);
  ASSERT_TRUE(process.wait_for("\nstep 5/200"));
  process.send(SIGTERM);
  const Outcome stopped = process.finish();
  ASSERT_EQ(stopped.code, 0) << stopped.err;
  ASSERT_EQ(train("a", overrides).code, 0);
  ASSERT_EQ(train("b", overrides).code, 0);
  expect_same_training("a", "b");
}

TEST_F(RanksTest, RefusesDegreesThatDoNotFit) {
  const auto error_of = [&](std::vector<std::string> overrides) {
    const Outcome outcome = train("run", std::move(overrides));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error_of({"--parallel.ranks=4", "--parallel.data=3"}),
              HasSubstr("parallel.data: found 3, which with parallel.tensor = 1 makes 3 ranks"));
  EXPECT_THAT(error_of({"--parallel.ranks=4", "--parallel.tensor=4"}),
              HasSubstr("parallel.tensor: found 4, expected a divisor of model.kv_heads = 2"));
  EXPECT_THAT(error_of({"--parallel.ranks=3", "--train.microbatch=1"}),
              HasSubstr("train.global_batch: found 4, expected a multiple of 3"));
  EXPECT_THAT(
      error_of({"--parallel.ranks=4", "--train.microbatch=1", "--state.param=3"}),
      AllOf(HasSubstr("param degree 3, expected one of 1"), HasSubstr("--state.param=3: state")));
  EXPECT_THAT(error_of({"--parallel.ranks=4", "--train.microbatch=1", "--state.preset=topo"}),
              AllOf(HasSubstr("no level \"pair\""),
                    HasSubstr("cluster.file, which says the levels, is not set")));
  EXPECT_THAT(error_of({"--parallel.ranks=4", "--train.microbatch=1", "--cluster.file=no.toml"}),
              AllOf(HasSubstr("cannot open no.toml"), HasSubstr("cluster.file")));
  EXPECT_THAT(error_of({"--parallel.ranks=4", "--train.microbatch=1", "--state.param=rack"}),
              AllOf(HasSubstr("no level \"rack\""), HasSubstr("state.param")));
  EXPECT_THAT(error_of({"--parallel.ranks=2", "--train.microbatch=2", "--state.grad=1"}),
              HasSubstr("param degree 2 does not divide grad degree 1"));
}

// What `explain` says that a rank sends in a step is what every step counts, by level and class.
TEST_F(RanksTest, ExplainKnowsWhatIsSent) {
  for (const std::string state : {"topo", "topo-int8", "zeropp"}) {
    const std::vector<std::string> overrides = {"--parallel.ranks=8",
                                                "--parallel.tensor=2",
                                                "--train.microbatch=1",
                                                "--train.steps=2",
                                                "--schedule.decay_ratio=0",
                                                "--schedule.warmup=1",
                                                virtual_cluster(8),
                                                "--state.preset=" + state,
                                                "--state.wire_block=32"};
    std::vector<std::string> command = {"explain", "run.toml"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    const Outcome explained = tessera(command);
    ASSERT_EQ(explained.code, 0) << explained.err;
    command.emplace_back("--json");
    const auto levels = nlohmann::json::parse(tessera(command).out).at("traffic").at("levels");
    ASSERT_EQ(train(state, overrides).code, 0);
    for (const std::string& line : metrics(state)) {
      const auto sent = nlohmann::json::parse(line).at("comm_bytes");
      ASSERT_EQ(sent.size(), 3) << "pair, node, cluster";
      for (const auto& [level, classes] : sent.items()) {
        std::string row = format("\n  {:<12}", level);
        for (const TrafficClass traffic_class : kTrafficClasses) {
          const std::int64_t bytes = classes.at(std::string(name(traffic_class)));
          row += format("  {} {:>16}", name(traffic_class), format_grouped(bytes));
        }
        EXPECT_THAT(explained.out, HasSubstr(row + "\n")) << state;
        const auto found = std::ranges::find_if(
            levels, [&](const nlohmann::json& known) { return known.at("level") == level; });
        ASSERT_NE(found, levels.end()) << level;
        EXPECT_EQ(found->at("classes"), classes) << state;
        std::int64_t sum = 0;
        for (const auto& [purpose, bytes] : found->at("purposes").items()) {
          sum += bytes.get<std::int64_t>();
        }
        EXPECT_EQ(sum,
                  classes.at("state").get<std::int64_t>() +
                      classes.at("tensor").get<std::int64_t>() +
                      classes.at("scalar").get<std::int64_t>());
      }
    }
  }
}

TEST_F(RanksTest, TheWireOfUpdatesIsAKey) {
  const auto explained = [&](const std::string& wire) {
    return tessera({"explain",
                    "run.toml",
                    "--parallel.ranks=4",
                    "--train.microbatch=1",
                    "--state.preset=zero1",
                    "--ops",
                    "--state.wire_update=" + wire})
        .out;
  };
  EXPECT_THAT(explained("full"), HasSubstr("gather_slices"));
  EXPECT_NE(explained("full"), explained("int8"));
}

// Ranks whose programs differ, as different builds of the program might make them.
TEST_F(RanksTest, RefusesRanksWithOtherCollectives) {
  const auto resolved = [&](const std::string& override) {
    const std::vector<std::string> overrides = {
        "--parallel.ranks=2",
        "--run.dir=" + path("run").string(),
        "--data.files=" + path("corpus.txt").string(),
        "--tokenizer.path=" + path("tokenizer.json").string(),
        override};
    return resolve(load_run_config(path("run.toml"), overrides));
  };
  std::filesystem::create_directory(path("run"));
  const RunConfig config = resolved("--state.preset=fsdp");
  const ModelDescription model = resolve_model(config);
  const PlannedRun planned = plan_run(config, model);
  const Programs programs = compile(planned.plan, planned.target);
  const Programs others =
      compile(plan_run(resolved("--state.preset=ddp"), model).plan, planned.target);
  const RunSequences sequences =
      run_sequences(config, run_tokenizer(config, model.vocab), model.vocab);
  const std::vector<ParameterInit> parameters = parameter_inits(step_graph(planned.plan));
  const auto run = [&] {
    launch_ranks(2, {}, [&](World& world) {
      const RunSetup setup = {.config = config,
                              .run = planned,
                              .programs = world.rank() == 1 ? others : programs,
                              .sequences = sequences,
                              .parameters = parameters,
                              .hooks = {},
                              .takes_signals = false};
      std::optional<std::int64_t> last_step;
      train_rank(setup, world, last_step);
    });
  };
  EXPECT_THAT(
      error_of(ErrorCode::kPeerFailure, run),
      HasSubstr("collectives of the ranks do not match: found rank 1 on stream comm at segment "));
}

// An error of one rank is the run's: one message, the record of each rank, no checkpoint.
TEST_F(RanksTest, AnErrorOfOneRankEndsTheRun) {
  const Layout layout = {"four", {"--parallel.ranks=4", "--train.microbatch=2"}};
  ASSERT_EQ(train_layout("run", layout, 2).code, 0);
  std::string tensor_file =
      path("run/checkpoints/step-00000002/rank-00002-model-00001-of-00001.safetensors");
  std::string bytes = read_file(tensor_file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomic(tensor_file, bytes);
  const Layout strict = {
      "four", {"--parallel.ranks=4", "--train.microbatch=2", "--checkpoint.fall_back=false"}};
  const Outcome outcome = train_layout("run", strict, 4);
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("rank-00002-model-00001-of-00001.safetensors: found checksum"));
  int records = 0;
  for (const std::string& name : entries("run")) {
    records += name.starts_with("exit-") ? 1 : 0;
  }
  EXPECT_GE(records, 1);
  EXPECT_THAT(entries("run/checkpoints"), testing::ElementsAre("step-00000002"));
}

// What nobody expected of a rank is told with where it left the others.
TEST_F(RanksTest, ARankThatThrowsEndsTheRun) {
  const std::vector<std::string> overrides = {
      "--parallel.ranks=2",
      "--run.dir=" + path("run").string(),
      "--data.files=" + path("corpus.txt").string(),
      "--tokenizer.path=" + path("tokenizer.json").string()};
  const RunConfig config = load_run_config(path("run.toml"), overrides);
  const auto run = [&] {
    train_model(config, [](std::int64_t rank, std::int64_t step) {
      if (rank == 1 && step == 3) {
        throw std::runtime_error("odd");
      }
    });
  };
  EXPECT_THAT(error_of(ErrorCode::kPeerFailure, run),
              testing::MatchesRegex("unexpected: odd \\(all ranks have saved the state after step "
                                    "2\\) \\(rank 1\\) \\(meanwhile rank 0, (segment .*, "
                                    "instruction .*|between two steps), .*; arrived: rank 0; "
                                    "missing: rank 1\\)"));
  for (const char* record : {"run/exit-0.json", "run/exit-1.json"}) {
    EXPECT_EQ(nlohmann::json::parse(read_file(path(record))).at("exit_code"), 5);
  }
}

// A thread that hangs cannot be ended: the process goes, after its records are written.
TEST_F(RanksTest, AThreadThatHangsEndsTheRun) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // The process that ends so has a directory of its own, which it leaves: in this one.
  ::setenv("TMPDIR", path(".").c_str(), 1);
  const auto hang = [&] {
    std::filesystem::current_path(path("."));
    const std::vector<std::string> overrides = {
        "--parallel.ranks=2", "--comm.deadline_seconds=10", "--run.dir=run"};
    const RunConfig config = load_run_config("run.toml", overrides);
    train_model(config, [](std::int64_t rank, std::int64_t step) {
      if (rank == 1 && step == 3) {
        std::this_thread::sleep_for(std::chrono::hours(1));
      }
    });
  };
  EXPECT_EXIT(hang(),
              testing::ExitedWithCode(5),
              "no answer within 10 s; arrived: rank 0; missing: rank 1 .*segment.*instruction");
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace tessera
