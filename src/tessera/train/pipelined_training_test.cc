// Whole runs with a pipeline: they go on with any other one, and end together, whichever rank
// fails, hangs or has no answer.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/test_fault_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/llama/llama.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ModelDescription four_layers() {
  return describe_llama(
      {.dim = 32, .layers = 4, .heads = 4, .kv_heads = 2, .ffn = 64, .vocab = 300});
}

struct Shape {
  std::int64_t pipeline = 1;
  std::string schedule = "1f1b";
  std::optional<std::vector<std::int64_t>> layers = {};
  std::int64_t data = 1;
};

class PipelinedTraining : public testing::Test {
 protected:
  RunConfig config(const std::string& run, const Shape& shape) const {
    RunConfig config = runs_.config(run);
    config.train.global_batch = 8;
    config.train.microbatch = 1;
    config.train.steps = 3;
    config.data.validation_share = 0.2;
    config.validation.every = 3;
    config.parallel.data = shape.data;
    config.parallel.pipeline = shape.pipeline;
    config.parallel.ranks = shape.pipeline * shape.data;
    if (shape.pipeline > 1) {
      config.pipeline = {.schedule = shape.schedule, .layers = shape.layers};
    }
    return config;
  }

  // By name and role.
  static std::map<std::string, std::vector<std::byte>> state_of(
      const std::filesystem::path& checkpoint) {
    std::map<std::string, std::vector<std::byte>> state;
    const CheckpointReader reader(checkpoint);
    for (const ManifestTensor& tensor : reader.tensors()) {
      state[quote(tensor.name, tensor.role)] = reader.read(tensor.name, tensor.role);
    }
    return state;
  }

  // Lines of metrics without times and sizes.
  std::vector<std::string> numbers_of(const std::string& run) const {
    std::vector<std::string> numbers;
    const std::string text = read_file(runs_.run(run) / "metrics.jsonl");
    for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      const std::string line = text.substr(begin, text.find('\n', begin) - begin);
      const std::size_t validation = line.find("\"validation_loss\"");
      numbers.push_back(
          line.substr(0, line.find("\"step_seconds\"")) +
          (validation == std::string::npos
               ? ""
               : line.substr(validation, line.find_first_of(",}", validation) - validation)));
    }
    return numbers;
  }

  // Three steps of each shape give what as many without a pipeline give.
  void expect_to_go_on(const ModelDescription& model, const std::vector<Shape>& shapes) const {
    constexpr std::int64_t kStepsOfEach = 3;
    RunConfig undisturbed = config("whole", {.data = shapes.at(0).data});
    undisturbed.train.steps = kStepsOfEach * std::ssize(shapes);
    const auto expected = train(undisturbed, model).checkpoint;
    std::optional<std::filesystem::path> last;
    std::int64_t steps = 0;
    for (const Shape& shape : shapes) {
      RunConfig part = config("ring", shape);
      part.train.steps = steps += kStepsOfEach;
      const TrainResult result = train(part, model);
      last = result.checkpoint;
      ASSERT_EQ(std::ssize(result.pipeline), shape.pipeline > 1 ? shape.pipeline : 0);
      for (const PipelineWaiting& waiting : result.pipeline) {
        EXPECT_GE(waiting.measured.value(), 0.0);
        EXPECT_LT(waiting.measured.value(), 1.0);
        EXPECT_LT(waiting.expected, 1.0);
      }
    }
    EXPECT_EQ(numbers_of("ring"), numbers_of("whole"));
    EXPECT_TRUE(state_of(last.value()) == state_of(expected.value()));
  }

  TestRun runs_;
};

// From none to stages in a V, to a stage without layers on data ranks, and back.
TEST_F(PipelinedTraining, GoesOnWithAnyOtherPipeline) {
  constexpr std::int64_t kData = 2;
  expect_to_go_on(four_layers(),
                  {{.data = kData},
                   {.pipeline = 3, .schedule = "zb-v", .data = kData},
                   {.pipeline = 2, .layers = {{4, 0}}, .data = kData},
                   {.pipeline = 4, .schedule = "gpipe", .data = kData},
                   {.data = kData}});
}

// Adapters' states alone are trained: those of frozen weights are nowhere.
TEST_F(PipelinedTraining, GoesOnWithAdapters) {
  ModelDescription model = four_layers();
  model.adapters = {.rank = 2, .alpha = 4.0, .targets = {"wq", "w2"}};
  expect_to_go_on(model, {{}, {.pipeline = 4}, {.pipeline = 2, .schedule = "zb-v"}});
}

// Whatever a rank's threads share, they share it alike.
TEST_F(PipelinedTraining, TrainsOnSeveralThreadsAsOneRankDoes) {
  const auto trained = [&](const std::string& run, const Shape& shape) {
    RunConfig config = this->config(run, shape);
    config.run.threads = 2;
    return state_of(train(config, four_layers()).checkpoint.value());
  };
  const auto expected = trained("one", {});
  EXPECT_TRUE(trained("two", {.pipeline = 2}) == expected);
  EXPECT_EQ(numbers_of("two"), numbers_of("one"));
}

// One whose stages are empty, between two of another rank's.
TEST_F(PipelinedTraining, HasNoShareOfARankThatTalksToNobody) {
  const auto waits =
      train(config("between", {.pipeline = 3, .schedule = "zb-v", .layers = {{1, 1, 0, 0, 1, 1}}}),
            four_layers())
          .pipeline;
  ASSERT_EQ(std::ssize(waits), 3);
  EXPECT_TRUE(waits[0].measured && waits[1].measured && !waits[2].measured);
}

// With sums in another order, which the user must know; validation takes whole sequences.
TEST_F(PipelinedTraining, GoesOnInSlicesOfSequences) {
  const auto lines = [&](const std::string& run) {
    return read_file(runs_.run(run) / "metrics.jsonl");
  };
  const auto validation_loss = [&](const std::string& run) {
    const std::string text = lines(run);
    const std::string key = "\"validation_loss\":";
    return std::stod(text.substr(text.find(key) + key.size()));
  };
  RunConfig whole = config("whole", {});
  whole.train.steps = 6;
  const double expected = train(whole, four_layers()).loss.value();
  RunConfig part = config("part", {.pipeline = 2});
  part.pipeline.slices = 5;
  EXPECT_EQ(std::ssize(train(part, four_layers()).pipeline), 2);
  part.pipeline = {.schedule = "gpipe", .slices = 2};
  part.train.steps = 6;
  testing::internal::CaptureStderr();
  const double found = train(part, four_layers()).loss.value();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("pipeline.slices (5, now 2)"));
  EXPECT_NEAR(found, expected, 1e-4 * expected);
  EXPECT_NEAR(validation_loss("part"), validation_loss("whole"), 1e-4 * expected);
}

// Its sums have another order, which the user must know.
TEST_F(PipelinedTraining, SaysThatATableTakesMicrobatchesInAnotherOrder) {
  const std::string table = runs_.run("falling.csv");
  write_test_file(table, "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n");
  RunConfig falling = config("run", {.pipeline = 2, .schedule = table});
  falling.train.global_batch = 2;
  falling.train.steps = 1;
  falling.validation.every = 0;
  testing::internal::CaptureStderr();
  train(falling, four_layers());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("pipeline: stage 0 runs 0B0 after a later microbatch"));
}

// What decides is the order, not the name of the table.
TEST_F(PipelinedTraining, SaysWhereItGoesOnWithAnotherOrder) {
  const std::string rising = runs_.run("rising.csv");
  const std::string own = runs_.run("own.csv");
  const auto falls = [&] { write_test_file(own, "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n"); };
  write_test_file(rising, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  write_test_file(own, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  std::int64_t steps = 0;
  const auto said = [&](const Shape& shape) {
    RunConfig config = this->config("run", shape);
    config.train.global_batch = 2;
    config.train.steps = ++steps;
    config.validation.every = 0;
    testing::internal::CaptureStderr();
    train(config, four_layers());
    const std::string text = testing::internal::GetCapturedStderr();
    return text.find("not bit by bit") != std::string::npos;
  };
  said({.pipeline = 2});
  EXPECT_FALSE(said({.pipeline = 2, .schedule = rising}));
  EXPECT_FALSE(said({.pipeline = 2, .schedule = own}));
  falls();
  EXPECT_TRUE(said({.pipeline = 2, .schedule = own})) << "under the same name";
  EXPECT_FALSE(said({.pipeline = 2, .schedule = own}));
  EXPECT_TRUE(said({.pipeline = 2}));
}

// A wild rate makes the numbers overflow on some stage: all of them leave the weights as they were.
TEST_F(PipelinedTraining, StagesAgreeOnAStepThatIsNotFinite) {
  const auto diverges = [&](const std::string& run, const Shape& shape) {
    RunConfig wild = config(run, shape);
    wild.optimizer.lr = 1e10;
    wild.train.steps = 20;
    wild.validation.every = 0;
    try {
      train(wild, four_layers());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDiverged) << error.what();
      return;
    }
    ADD_FAILURE() << run << " did not diverge";
  };
  diverges("one", {});
  const auto newest = [&](const std::string& run) {
    return find_newest_checkpoint(runs_.run(run) / "checkpoints").value();
  };
  for (const Shape& shape : {Shape{.pipeline = 2}, Shape{.pipeline = 4, .schedule = "zb-h1"}}) {
    const std::string run = format("pipeline{}", shape.pipeline);
    diverges(run, shape);
    EXPECT_EQ(numbers_of(run), numbers_of("one"));
    EXPECT_TRUE(state_of(newest(run)) == state_of(newest("one")));
  }
}

// Calls act(number), before each op of this rank's from the start of this step on.
TrainHooks from_step(std::int64_t acting_rank,
                     std::int64_t first_step,
                     const std::function<void(std::int64_t item)>& act) {
  const auto items = std::make_shared<std::atomic<std::int64_t>>(-1);
  return {.before_step =
              [=](std::int64_t rank, std::int64_t step) {
                if (rank == acting_rank && step == first_step) {
                  *items = 0;
                }
              },
          .wrap_backend = [=](std::int64_t rank,
                              std::unique_ptr<Backend> backend) -> std::unique_ptr<Backend> {
            return std::make_unique<FaultBackend>(std::move(backend), [=](std::int64_t) {
              if (rank == acting_rank && *items >= 0) {
                act((*items)++);
              }
            });
          }};
}

// Calls act() before one of the ops of this rank's in its second step.
TrainHooks at_item(std::int64_t rank, std::int64_t item, const std::function<void()>& act) {
  return from_step(rank, 2, [=](std::int64_t number) {
    if (number == item) {
      act();
    }
  });
}

constexpr std::int64_t kInForward = 20;

// The first cause with its place, at once, though the others wait for what it would have sent.
TEST_F(PipelinedTraining, EndsWithWhatAStageFailedWith) {
  const Shape shape = {.pipeline = 3, .data = 2};
  constexpr std::int64_t kCountedSteps = 2;
  for (std::int64_t rank = 0; rank < shape.pipeline * shape.data; ++rank) {
    // What its second and third steps do, which are alike.
    std::atomic<std::int64_t> num_items = 0;
    RunConfig config = this->config(format("whole{}", rank), shape);
    config.validation.every = 0;
    train(config, four_layers(), from_step(rank, 2, [&](std::int64_t /*item*/) { ++num_items; }));
    const std::int64_t items = num_items / kCountedSteps;
    // The last ones are the update.
    const std::int64_t item =
        std::vector{std::int64_t{0}, kInForward, items - 2}.at(static_cast<std::size_t>(rank % 3));
    config.run.dir = runs_.run(format("run{}", rank));
    std::chrono::steady_clock::time_point failed;
    std::string message;
    try {
      train(config, four_layers(), at_item(rank, item, [&] {
              failed = std::chrono::steady_clock::now();
              fail(ErrorCode::kDeviceError, "the device is gone");
            }));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDeviceError);
      message = error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - failed, std::chrono::seconds(30))
        << "the deadline of 60 s has nothing to do with it";
    EXPECT_THAT(message,
                AllOf(HasSubstr("the device is gone (segment "),
                      HasSubstr(", microbatch "),
                      HasSubstr(format("(pipeline rank {0}: stage {0})", rank / shape.data)),
                      HasSubstr(format("(rank {}", rank))));
    EXPECT_EQ(message.find("(segment update") != std::string::npos, item == items - 2) << message;
  }
}

// Longer in all than others wait for a rank that does nothing; here one works, if slowly.
TEST_F(PipelinedTraining, WaitsForAStageThatWorks) {
  train(config("whole", {.pipeline = 3}), four_layers());
  for (const std::int64_t slow : {0, 2}) {
    const std::string run = format("slow{}", slow);
    RunConfig config = this->config(run, {.pipeline = 3});
    config.comm.deadline_seconds = 3;
    constexpr std::int64_t kSlowItems = 7;
    std::atomic<std::int64_t> num_slow = 0;
    train(config, four_layers(), from_step(slow, 2, [&](std::int64_t item) {
            if (item >= kInForward && item < kInForward + kSlowItems) {
              ++num_slow;
              std::this_thread::sleep_for(std::chrono::milliseconds(500));
            }
          }));
    EXPECT_EQ(num_slow, kSlowItems);
    EXPECT_EQ(numbers_of(run), numbers_of("whole"));
  }
}

// Those that wait for a rank that stands still say for whom and in what, and end the process, which
// it is a thread of. Both neighbours of the one in the middle wait for it.
TEST_F(PipelinedTraining, EndsWhereAStageHangs) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // The process that ends so has a directory of its own, which it leaves: in this one.
  ::setenv("TMPDIR", runs_.run(".").c_str(), 1);
  const auto hang = [&] {
    RunConfig hangs = config("run", {.pipeline = 3});
    hangs.comm.deadline_seconds = 3;
    train(hangs, four_layers(), at_item(1, kInForward, [] {
            std::this_thread::sleep_for(std::chrono::hours(1));
          }));
  };
  EXPECT_EXIT(hang(),
              testing::ExitedWithCode(5),
              "error: rank [02] waits at call [^\n]* of microbatch [^\n]* rank 1, which is at call "
              "[^\n]* of microbatch [^\n]*: no answer within 3 s .segment ");
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace tessera
