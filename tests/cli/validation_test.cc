// Validation during training, from outside: it depends on the weights alone, and changes nothing.

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

class ValidationTest : public TrainingTest {
 protected:
  // Data is held out in any case; `every` says whether it is looked at.
  Outcome train_validating(const std::string& run,
                           int every,
                           std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.end(),
                     {"--data.validation_share=0.2", format("--validation.every={}", every)});
    return train(run, overrides);
  }

  // By step.
  std::map<std::int64_t, double> validation_losses(const std::string& run) const {
    std::map<std::int64_t, double> losses;
    for (const std::string& line : metrics(run)) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("validation_loss")) {
        losses[json.at("step")] = json.at("validation_loss");
      }
    }
    return losses;
  }

  // numbers(), but for validation_loss.
  std::vector<std::string> trained(const std::string& run) const {
    std::vector<std::string> lines;
    for (const std::string& line : numbers(run)) {
      auto json = nlohmann::json::parse(line);
      json.erase("validation_loss");
      lines.push_back(json.dump());
    }
    return lines;
  }

  std::string best(const std::string& run) const {
    return fs::read_symlink(path(run) / "checkpoints/best").string();
  }
};

std::string cluster(int ranks) {
  return format("--cluster.file={}/configs/clusters/virtual-{}.toml", TESSERA_SOURCE_DIR, ranks);
}

TEST_F(ValidationTest, ChangesNothingAndIsAtItsSteps) {
  ASSERT_EQ(train_validating("off", 0).code, 0);
  const Outcome outcome = train_validating("on", 3);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(trained("on"), trained("off"));
  EXPECT_THAT(differing_tensors(checkpoint("on"), checkpoint("off")), testing::IsEmpty());
  const std::map<std::int64_t, double> losses = validation_losses("on");
  EXPECT_THAT(
      losses,
      testing::ElementsAre(testing::Key(3), testing::Key(6), testing::Key(9), testing::Key(12)));
  EXPECT_LT(losses.at(12), losses.at(3));
  EXPECT_THAT(outcome.err, HasSubstr(format("step 12: validation loss {:.4f}", losses.at(12))));
  EXPECT_TRUE(validation_losses("off").empty());
}

// Whatever order and size the training batches have: with a learning rate of nothing the weights
// are those of the start, and so is the loss.
TEST_F(ValidationTest, DependsOnTheWeightsAlone) {
  const std::vector<std::string> still = {
      "--optimizer.lr=1e-30", "--train.steps=4", "--schedule.decay_ratio=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), still.begin(), still.end());
    return more;
  };
  ASSERT_EQ(train_validating("a", 2, with({})).code, 0);
  ASSERT_EQ(train_validating("b", 2, with({"--train.global_batch=6", "--data.shuffle=false"})).code,
            0);
  ASSERT_EQ(train_validating("c", 2, with({"--train.microbatch=4"})).code, 0);
  const auto a = validation_losses("a");
  EXPECT_EQ(a.at(2), a.at(4));
  EXPECT_EQ(validation_losses("b"), a);
  // Other products: other last bits.
  EXPECT_NEAR(validation_losses("c").at(2), a.at(2), 1e-6 * a.at(2));
}

struct Layout {
  std::string name;
  std::vector<std::string> overrides;
};

// One microbatch a step over 4 data ranks: they train bitwise alike, and validate so.
TEST_F(ValidationTest, LayoutsThatTrainAlikeValidateAlike) {
  const std::vector<std::string> presets = {"ddp", "zero1", "fsdp", "hsdp@pair", "topo"};
  for (const std::string& preset : presets) {
    const Outcome outcome = train_validating(preset,
                                             2,
                                             {"--parallel.ranks=4",
                                              "--train.microbatch=1",
                                              cluster(4),
                                              "--state.preset=" + preset,
                                              "--state.wire_param=full",
                                              "--state.wire_grad=full"});
    ASSERT_EQ(outcome.code, 0) << preset << ": " << outcome.err;
    EXPECT_EQ(validation_losses(preset).size(), 6U) << preset;
    EXPECT_EQ(numbers(preset), numbers("ddp")) << preset;
  }
}

// However many batches a pipeline has in flight, also where the last ones are fewer: 19 batches,
// the last of which has one sequence.
TEST_F(ValidationTest, PipelinesValidateAsOneRankDoes) {
  const auto losses = [&](const std::string& run, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"--train.microbatch=2", "--validation.sequences=37"});
    const Outcome outcome = train_validating(run, 6, overrides);
    EXPECT_EQ(outcome.code, 0) << run << ": " << outcome.err;
    return validation_losses(run);
  };
  for (const char* const layers : {"2", "3"}) {
    const std::string model = format("--model.layers={}", layers);
    const std::string name = format("{}-layers", layers);
    const std::map<std::int64_t, double> expected = losses(name, {model});
    ASSERT_EQ(expected.size(), 2U);
    EXPECT_EQ(losses(name + "-pipeline", {model, format("--parallel.pipeline={}", layers)}),
              expected);
  }
  EXPECT_EQ(losses("fsdp", {"--parallel.data=2", "--state.preset=fsdp", "--train.global_batch=8"}),
            losses("fsdp-pipeline",
                   {"--parallel.data=2",
                    "--parallel.pipeline=2",
                    "--state.preset=fsdp",
                    "--train.global_batch=8"}));
}

// On the wires of topo (int8), too: a validation computes with what came off the wire, as training
// does, from the second copy of the parameters.
TEST_F(ValidationTest, IsBitwiseHoweverItIsCompiled) {
  const std::vector<Layout> variants = {{"plain", {"--comm.overlap=false", "--passes.fuse=false"}},
                                        {"overlap", {}},
                                        {"layers", {"--comm.overlap_layers=2"}},
                                        {"recompute", {"--memory.recompute=full"}},
                                        {"async", {"--checkpoint.every=2"}}};
  for (const std::string dtype : {"f32", "bf16"}) {
    for (const Layout& variant : variants) {
      std::vector<std::string> overrides = {"--parallel.ranks=4",
                                            "--train.microbatch=1",
                                            cluster(4),
                                            "--state.preset=topo",
                                            "--train.dtype=" + dtype};
      overrides.insert(overrides.end(), variant.overrides.begin(), variant.overrides.end());
      const std::string run = variant.name + "-" + dtype;
      const Outcome outcome = train_validating(run, 2, overrides);
      ASSERT_EQ(outcome.code, 0) << run << ": " << outcome.err;
      EXPECT_EQ(validation_losses(run).size(), 6U) << run;
      EXPECT_EQ(numbers(run), numbers("plain-" + dtype)) << run;
    }
  }
}

// Other numbers of ranks and tensor parallelism are close (docs/design/determinism.md, D4), in f32.
TEST_F(ValidationTest, OtherLayoutsAreClose) {
  const std::vector<Layout> layouts = {
      {"one", {"--train.microbatch=4"}},
      {"two", {"--parallel.ranks=2", "--train.microbatch=2"}},
      {"two-ddp", {"--parallel.ranks=2", "--train.microbatch=1", "--state.preset=ddp"}},
      {"four", {"--parallel.ranks=4", "--train.microbatch=1"}},
      {"context", {"--parallel.ranks=2", "--parallel.context=2"}},
      {"ring", {"--parallel.ranks=2", "--parallel.context=2", "--context.kind=ring"}},
      {"tensor", {"--parallel.ranks=2", "--parallel.tensor=2"}},
      {"both", {"--parallel.ranks=4", "--parallel.tensor=2"}}};
  for (const Layout& layout : layouts) {
    const Outcome outcome = train_validating(layout.name, 1, layout.overrides);
    ASSERT_EQ(outcome.code, 0) << layout.name << ": " << outcome.err;
    const auto losses = validation_losses(layout.name);
    ASSERT_EQ(losses.size(), 12U) << layout.name;
    for (const auto& [step, loss] : validation_losses("one")) {
      EXPECT_NEAR(losses.at(step), loss, (step == 1 ? 1e-6 : 1e-4) * loss)
          << layout.name << ": step " << step;
    }
  }
}

TEST_F(ValidationTest, ReadsSoManySequences) {
  ASSERT_EQ(train_validating("all", 6).code, 0);
  ASSERT_EQ(train_validating("some", 6, {"--validation.sequences=5"}).code, 0);
  ASSERT_EQ(train_validating("more", 6, {"--validation.sequences=100000"}).code, 0);
  EXPECT_EQ(validation_losses("more"), validation_losses("all"));
  EXPECT_NE(validation_losses("some"), validation_losses("all"));
  EXPECT_NEAR(validation_losses("some").at(12), validation_losses("all").at(12), 0.5);
}

TEST_F(ValidationTest, ResumedIsUninterrupted) {
  const std::vector<std::string> half = {"--train.steps=12", "--schedule.decay_ratio=0"};
  ASSERT_EQ(train_validating("whole", 2, half).code, 0);
  ASSERT_EQ(train_validating("parts", 2, {"--train.steps=5", "--schedule.decay_ratio=0"}).code, 0);
  ASSERT_EQ(train_validating("parts", 2, half).code, 0);
  expect_same_training("parts", "whole");
}

// How often the event files of a run name its validation loss.
std::size_t validation_events(const fs::path& run) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(run)) {
    if (entry.path().filename().string().find("tfevents") == std::string::npos) {
      continue;
    }
    const std::string bytes = read_file(entry.path());
    for (std::size_t at = 0; (at = bytes.find("validation_loss", at)) != std::string::npos; ++at) {
      ++count;
    }
  }
  return count;
}

// A long validation is left when the run is to stop, and made up for when it goes on: also that of
// the last step, and on several ranks.
TEST_F(ValidationTest, IsLeftToStopAndMadeUpFor) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += corpus_text();
  }
  write_test_file(path("held.txt"), text);
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--train.steps=2"},
                                               {"--train.steps=4",
                                                "--parallel.ranks=2",
                                                "--state.preset=ddp",
                                                "--train.microbatch=1",
                                                "--validation.sequences=9000"}}) {
    SCOPED_TRACE(more.front());
    std::vector<std::string> overrides = {
        "--data.validation_files=held.txt", "--validation.every=2", "--schedule.decay_ratio=0"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const std::string whole = format("whole-{}", more.size());
    const std::string parts = format("parts-{}", more.size());
    ASSERT_EQ(train(whole, overrides).code, 0);

    Process process = start_training(parts, overrides);
    ASSERT_TRUE(process.wait_for("\nstep 2/"));
    process.send(SIGTERM);
    const Outcome stopped = process.finish();
    ASSERT_EQ(stopped.code, 0) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("stopped after step 2; the same command goes on"));
    EXPECT_THAT(metrics(parts), testing::SizeIs(2));
    EXPECT_THAT(validation_losses(parts), testing::IsEmpty());

    const Outcome resumed = train(parts, overrides);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_THAT(resumed.err, HasSubstr("validating step 2, in whose validation the run was"));
    expect_same_training(parts, whole);
    EXPECT_EQ(validation_losses(parts), validation_losses(whole));
    EXPECT_EQ(best(parts), best(whole));
    EXPECT_EQ(validation_events(path(parts)), validation_events(path(whole)));
    // The machine may go down between the last save and the link to the best checkpoint.
    std::filesystem::remove(std::filesystem::path(path(parts)) / "checkpoints" / "best");
    EXPECT_THAT(train(parts, overrides).err, HasSubstr("nothing to do"));
    EXPECT_EQ(best(parts), best(whole));
    // Without the losses the link stays as it is.
    std::filesystem::remove(path(parts) / "metrics.jsonl");
    const Outcome without = train(parts, overrides);
    EXPECT_EQ(without.code, 0) << without.err;
    EXPECT_THAT(without.err, HasSubstr("nothing to do"));
    EXPECT_EQ(best(parts), best(whole));
  }
}

// The step of the lowest validation loss among those that have a checkpoint.
std::string lowest(const std::map<std::int64_t, double>& losses, std::int64_t every) {
  std::int64_t step = 0;
  double loss = std::numeric_limits<double>::infinity();
  for (const auto& [at, value] : losses) {
    if (at % every == 0 && value < loss) {
      loss = value;
      step = at;
    }
  }
  return format("step-{:08}", step);
}

// A rate that ruins the weights after a while: the best checkpoint is none of the newest.
TEST_F(ValidationTest, BestCheckpointIsKept) {
  const std::vector<std::string> wild = {"--train.steps=16",
                                         "--optimizer.lr=1",
                                         "--optimizer.clip=0",
                                         "--schedule.warmup=16",
                                         "--schedule.decay_ratio=0",
                                         "--checkpoint.every=2",
                                         "--checkpoint.keep=1"};
  const Outcome outcome = train_validating("wild", 2, wild);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string step = lowest(validation_losses("wild"), 2);
  ASSERT_NE(step, "step-00000016");
  EXPECT_EQ(best("wild"), step);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(path("wild") / "checkpoints")) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, testing::UnorderedElementsAre("best", step, "step-00000016"));
  const Outcome continued = tessera({"generate", "wild/checkpoints/best", "--prompt=Line 1"});
  EXPECT_EQ(continued.code, 0) << continued.err;

  std::vector<std::string> without = wild;
  without.emplace_back("--checkpoint.keep_best=false");
  ASSERT_EQ(train_validating("without", 2, without).code, 0);
  EXPECT_FALSE(fs::exists(path("without") / "checkpoints" / step));
  EXPECT_FALSE(fs::is_symlink(path("without") / "checkpoints/best"));
}

// What the best loss was is known to the process that goes on, also where it takes another way.
TEST_F(ValidationTest, BestCheckpointSurvivesAResume) {
  std::vector<std::string> overrides = {"--optimizer.lr=1",
                                        "--optimizer.clip=0",
                                        "--schedule.warmup=8",
                                        "--schedule.decay_ratio=0",
                                        "--checkpoint.every=2",
                                        "--checkpoint.keep=1",
                                        "--train.steps=10"};
  ASSERT_EQ(train_validating("run", 2, overrides).code, 0);
  const std::string first = best("run");
  EXPECT_EQ(first, lowest(validation_losses("run"), 2));
  overrides.back() = "--train.steps=16";
  ASSERT_EQ(train_validating("run", 2, overrides).code, 0);
  EXPECT_EQ(best("run"), lowest(validation_losses("run"), 2));
  // From the best on, hardly moving: the newer checkpoints are set aside.
  overrides.insert(overrides.end(),
                   {"--checkpoint.resume=run/checkpoints/best", "--optimizer.lr=1e-9"});
  ASSERT_EQ(train_validating("run", 2, overrides).code, 0);
  EXPECT_EQ(validation_losses("run").rbegin()->first, 16);
  EXPECT_EQ(best("run"), lowest(validation_losses("run"), 2));
  EXPECT_TRUE(fs::exists(path("run") / "checkpoints/best/manifest.json"));
}

TEST_F(ValidationTest, NeedsDataToValidateOn) {
  const Outcome outcome = train("run", {"--validation.every=5"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("validation.every: found 5, and nothing to validate on: set "
                        "data.validation_share or data.validation_files"));
}

// Losses of other data say nothing of which checkpoint is the best: with this rate all that come
// later are higher.
TEST_F(ValidationTest, OtherHeldOutDataStartTheBestAnew) {
  const std::vector<std::string> keys = {
      "--validation.every=4", "--checkpoint.every=4", "--data.validation_share=0.2"};
  ASSERT_EQ(train("a", keys).code, 0);
  const auto continued = [&](const std::string& steps, const std::string& share) {
    const Outcome outcome = train("a",
                                  {keys[0],
                                   keys[1],
                                   "--data.validation_share=" + share,
                                   "--train.steps=" + steps,
                                   "--optimizer.lr=1"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  const auto best = [&] { return fs::read_symlink(path("a/checkpoints/best")).string(); };
  EXPECT_THAT(continued("16", "0.2"), testing::Not(HasSubstr("are others than before")));
  EXPECT_EQ(best(), "step-00000012");
  EXPECT_THAT(continued("20", "0.4"), HasSubstr("the data for validation are others than before"));
  EXPECT_EQ(best(), "step-00000020");
  EXPECT_THAT(continued("24", "0.4"), testing::Not(HasSubstr("are others than before")));
  EXPECT_THAT(best(), testing::AnyOf("step-00000020", "step-00000024"));
}

}  // namespace
}  // namespace tessera
