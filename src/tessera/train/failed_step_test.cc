// What a run says whose step fails: which checkpoint is left, and how to go on.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/ops/custom/custom.h"
#include "tessera/report/metrics_table.h"
#include "tessera/state/test_training.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::int64_t kSteps = 6;
constexpr int kMicrobatches = 2;

// The ids that it is given, as long as the device works.
struct DeviceIdsAttrs {
  std::shared_ptr<int> runs_left;

  friend bool operator==(const DeviceIdsAttrs&, const DeviceIdsAttrs&) = default;
};

OpInfo info(const DeviceIdsAttrs&) {
  return {.name = "device_ids", .num_operands = 1};
}

TensorTypes infer(const DeviceIdsAttrs&, Types in) {
  return {in[0]};
}

FactorRule factors(const DeviceIdsAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Works work(const DeviceIdsAttrs& attrs, Types in) {
  return streaming_work(0, in, infer(attrs, in));
}

void backward(const DeviceIdsAttrs&, GradBuilder& grad) {
  grad.none("ids have no gradient");
}

void visit(DeviceIdsAttrs&, AttrVisitor&) {}

std::int64_t workspace_bytes(const DeviceIdsAttrs&, cpu::Context&, Types) {
  return 0;
}

void run(const DeviceIdsAttrs& attrs, cpu::Context&, const Views& views) {
  TESSERA_REQUIRE(--*attrs.runs_left >= 0, ErrorCode::kDeviceError, "the device is gone");
  std::copy_n(
      views.in[0].as<std::int32_t>(), views.in[0].num_elements(), views.out[0].as<std::int32_t>());
}

// On a device that fails in this step.
ModelDescription failing_in(std::int64_t step) {
  ModelDescription description = tiny_llama();
  const auto runs_left =
      std::make_shared<int>(static_cast<int>(step - 1) * kMicrobatches + kMicrobatches / 2);
  description.model = [whole = description.model, runs_left](GraphBuilder& builder,
                                                             const ModelInputs& inputs) {
    ModelInputs read = inputs;
    read.tokens = builder.emit(make_custom_op(DeviceIdsAttrs{runs_left}), {inputs.tokens})[0];
    return whole(builder, read);
  };
  return description;
}

// Before step 5 begins, on the last rank.
TrainHooks failing_with(ErrorCode code) {
  return {.before_step = [code](std::int64_t rank, std::int64_t step) {
    if (rank == 1 && step == 5) {
      fail(code, "no answer");
    }
  }};
}

class FailedStep : public testing::Test {
 protected:
  RunConfig config(const std::string& run) const {
    RunConfig config = runs_.config(run);
    config.train.steps = kSteps;
    config.train.microbatch = config.train.global_batch / kMicrobatches;
    config.checkpoint.every = 2;
    config.checkpoint.async = false;  // so that each is there when its step has ended
    return config;
  }

  RunConfig on_two_ranks(const std::string& run) const {
    RunConfig two = config(run);
    two.parallel.ranks = 2;
    two.train.microbatch = 1;
    return two;
  }

  std::string checkpoint(const std::string& run, std::int64_t step) const {
    return checkpoint_directory(runs_.run(run) / "checkpoints", step);
  }

  TestRun runs_;
};

TEST_F(FailedStep, FinishesTheSaveUnderWay) {
  RunConfig one = config("background");
  one.checkpoint.async = true;
  const std::string message = error_of(ErrorCode::kDeviceError, [&] { train(one, failing_in(5)); });
  const std::string left = checkpoint("background", 4);
  EXPECT_THAT(message, HasSubstr(format("the last good checkpoint is {}: the same command", left)));
  EXPECT_EQ(CheckpointReader(left).meta().step, 4);
}

// Whatever it was.
TEST_F(FailedStep, OfTheHostFinishesTheSaveUnderWay) {
  RunConfig one = config("host");
  one.checkpoint.async = true;
  const TrainHooks hooks = {.before_step = [](std::int64_t, std::int64_t step) {
    TESSERA_REQUIRE(step < 5, ErrorCode::kInvalidData, "no such token");
  }};
  error_of(ErrorCode::kInvalidData, [&] { train(one, tiny_llama(), hooks); });
  EXPECT_EQ(CheckpointReader(checkpoint("host", 4)).meta().step, 4);
}

// By several ranks it is the next start that finishes it.
TEST_F(FailedStep, OfOneRankLosesNoSaveUnderWay) {
  RunConfig two = on_two_ranks("two");
  two.checkpoint.async = true;
  error_of(ErrorCode::kDeviceError,
           [&] { train(two, tiny_llama(), failing_with(ErrorCode::kDeviceError)); });
  std::atomic<std::int64_t> first = kSteps + 1;
  train(two, tiny_llama(), {.before_step = [&](std::int64_t, std::int64_t step) {
          first = std::min<std::int64_t>(first, step);
        }});
  EXPECT_EQ(first, 5);
}

TEST_F(FailedStep, NamesTheCheckpointThatIsLeft) {
  const std::string left = checkpoint("run", 4);
  const std::string message =
      error_of(ErrorCode::kDeviceError, [&] { train(config("run"), failing_in(5)); });
  EXPECT_THAT(message,
              AllOf(StartsWith("the device is gone (segment "),
                    HasSubstr(": device_ids)"),
                    EndsWith(format(" (the last good checkpoint is {}: the same command goes on "
                                    "from there)",
                                    left))));
  const auto record = nlohmann::json::parse(read_file(runs_.run("run") / "exit-0.json"));
  EXPECT_EQ(record["exit_code"], 5);
  EXPECT_EQ(record["step"], 4);
  EXPECT_EQ(record["message"], message);

  CheckpointReader(left).verify();
  const TrainResult rest = train(config("run"), tiny_llama());
  const TrainResult whole = train(config("whole"), tiny_llama());
  EXPECT_EQ(rest.step, kSteps);
  EXPECT_EQ(rest.loss, whole.loss);
}

TEST_F(FailedStep, SaysWhereThereIsNoCheckpoint) {
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { train(config("run"), failing_in(1)); }),
              EndsWith(" (there is no checkpoint yet: the same command begins again)"));
  EXPECT_EQ(train(config("run"), tiny_llama()).step, kSteps);
}

// Though none was due.
TEST_F(FailedStep, SavesTheLastStepOnItsWayOut) {
  EXPECT_THAT(
      error_of(ErrorCode::kDeviceError, [&] { train(config("run"), failing_in(4)); }),
      EndsWith(format(" (the state after step 3 is saved as {}: the same command goes on from "
                      "there)",
                      checkpoint("run", 3))));
  CheckpointReader(checkpoint("run", 3)).verify();
  EXPECT_EQ(train(config("run"), tiny_llama()).loss, train(config("whole"), tiny_llama()).loss);
}

// As where another rank publishes one just before this one fails.
TEST_F(FailedStep, NamesACheckpointThatNobodySpokeOf) {
  train(config("other"), tiny_llama());
  for (const std::int64_t failing : {1, 3}) {
    const std::string run = format("run{}", failing);
    const auto publish = [&](std::int64_t /*rank*/, std::int64_t step) {
      if (step == failing) {
        std::filesystem::create_directories(runs_.run(run) / "checkpoints");
        std::filesystem::copy(checkpoint("other", 4), checkpoint(run, 4));
      }
    };
    EXPECT_THAT(
        error_of(ErrorCode::kDeviceError,
                 [&] { train(config(run), failing_in(failing), {.before_step = publish}); }),
        EndsWith(format("(the newest checkpoint is {}: the same command goes on from "
                        "there)",
                        checkpoint(run, 4))));
  }
}

// The same command would start from nothing, which is refused, or from where this one did.
TEST_F(FailedStep, SaysHowToGoOnFromANewerCheckpoint) {
  RunConfig fresh = config("run");
  fresh.checkpoint.resume = "none";
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { train(fresh, failing_in(3)); }),
              EndsWith(format("(the last good checkpoint is {}: the same command with "
                              "--checkpoint.resume=auto goes on from there)",
                              checkpoint("run", 2))));
  RunConfig other = config("other");
  other.checkpoint.resume = checkpoint("run", 2);
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { train(other, failing_in(1)); }),
              EndsWith(format("(the last good checkpoint is {}: the same command goes on from "
                              "there)",
                              checkpoint("run", 2))));
}

// Once, whichever rank failed and whoever waited for it.
TEST_F(FailedStep, OfOneRankIsToldForAll) {
  const std::string left =
      format("the last good checkpoint is {}: the same command", checkpoint("run", 4));
  for (const ErrorCode code :
       {ErrorCode::kDeviceError, ErrorCode::kPeerFailure, ErrorCode::kTimeout}) {
    SCOPED_TRACE(to_string(code));
    std::filesystem::remove_all(runs_.run("run"));
    const std::string message =
        error_of(code, [&] { train(on_two_ranks("run"), tiny_llama(), failing_with(code)); });
    const std::size_t at = message.find(left);
    ASSERT_NE(at, std::string::npos) << message;
    EXPECT_EQ(message.find(left, at + 1), std::string::npos) << message;
    EXPECT_EQ(exit_code(code), 5);
    CheckpointReader(checkpoint("run", 4)).verify();
  }
}

// What a run is given is no better the next time.
TEST_F(FailedStep, OfBadDataIsNotToBeRepeated) {
  EXPECT_THAT(
      error_of(
          ErrorCode::kInvalidData,
          [&] { train(on_two_ranks("run"), tiny_llama(), failing_with(ErrorCode::kInvalidData)); }),
      AllOf(StartsWith("no answer (rank 1)"), Not(HasSubstr("the same command"))));
}

// A disk that is full for a while ends no run, and leaves no gap.
TEST_F(FailedStep, OfAFullDiskAtTheMetricsIsSurvived) {
  const Faults faults({{.call = FaultCall::kWrite,
                        .path = "metrics.jsonl",
                        .after = 1,
                        .times = 2,
                        .error = ENOSPC},
                       {.call = FaultCall::kWrite,
                        .path = "sessions.jsonl",
                        .after = 1,
                        .times = Fault::kAlways,
                        .error = ENOSPC}});
  testing::internal::CaptureStderr();
  EXPECT_EQ(train(config("run"), tiny_llama()).step, kSteps);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(faults.hits(0), 2);
  EXPECT_EQ(faults.hits(1), 1);
  EXPECT_THAT(said,
              AllOf(HasSubstr("metrics.jsonl: No space left on device: training goes on"),
                    HasSubstr("is there now"),
                    HasSubstr("sessions.jsonl: No space left on device")));
  EXPECT_EQ(read_metrics(runs_.run("run") / "metrics.jsonl", BrokenLines::kRefuse).steps,
            (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace tessera
