#include "tessera/runtime/step_stamps.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/null/null_backend.h"
#include "tessera/backend/test_forwarding_backend.h"
#include "tessera/runtime/executor.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// Stream 0 waits for what the second one makes.
constexpr std::string_view kWaitingStream = R"(program "two" microbatches 1 arena 768 {
  stream "compute"
  stream "second"
  buffer 0 "a" input 128 bytes at (0) persistent
  buffer 1 "b" activation 128 bytes at (256) persistent
  buffer 2 "c" activation 128 bytes at (512) persistent
  input "a" = #0+0 f32[n=32] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=32] strides(1) = gelu(#0+0 f32[n=32] strides(1)) stream 1 signal 1
    #2+0 f32[n=32] strides(1) = scale(#0+0 f32[n=32] strides(1), #0+0 f32[] strides()) stream 0 wait 1
  }
  call 0 microbatch 0 slots ()
}
)";

// Whose kernels on the second stream end when one on the first has begun.
class LatchedBackend final : public ForwardingBackend {
 public:
  LatchedBackend() : LatchedBackend(make_null_backend()) {}

  void run(const Op& /*op*/, const Views& /*views*/, StreamId stream) override {
    if (stream == StreamId{0}) {
      has_begun_ = true;
      has_begun_.notify_all();
    } else if (is_latched) {
      has_begun_.wait(false);
    }
  }

  bool is_latched = false;

 private:
  explicit LatchedBackend(std::unique_ptr<Backend> to)
      : ForwardingBackend(*to), memory_(std::move(to)) {}

  std::unique_ptr<Backend> memory_;
  std::atomic<bool> has_begun_ = false;
};

std::vector<StepIndex> steps_of(const Executor& executor, std::size_t stream) {
  std::vector<StepIndex> steps;
  for (const StepStamp& stamp : executor.stamps().of_stream(stream)) {
    steps.push_back(stamp.step);
  }
  return steps;
}

TEST(StepStamps, SayWhatWaitsForWhat) {
  const Program program = parse_program(kWaitingStream);
  LatchedBackend backend;
  Executor executor(program, backend);
  executor.run_step();
  EXPECT_TRUE(executor.stamps().of_stream(0).empty()) << "nobody has asked for them";
  executor.stamp_steps();
  for (int step = 0; step < 2; ++step) {
    executor.run_step();
    EXPECT_THAT(steps_of(executor, 0), ElementsAre(1U));
    EXPECT_THAT(steps_of(executor, 1), ElementsAre(0U));
    EXPECT_LE(executor.stamps().of_stream(1)[0].end, executor.stamps().of_stream(0)[0].begin);
  }
  executor.stop_stamps();
  EXPECT_TRUE(executor.stamps().of_stream(0).empty()) << "nobody asks for them any more";
  executor.run_step();
  EXPECT_TRUE(executor.stamps().of_stream(1).empty());
}

// What the text does not say neither the order has nor the executor does: with the wait, this step
// would not end.
TEST(StepStamps, SayThatAWaitIsGone) {
  std::string text(kWaitingStream);
  text.erase(text.find(" wait 1"), std::string_view(" wait 1").size());
  const Program program = parse_program(text);
  LatchedBackend backend;
  backend.is_latched = true;
  Executor executor(program, backend);
  EXPECT_TRUE(executor.order().waits.empty());
  executor.stamp_steps();
  executor.run_step();
  EXPECT_GE(executor.stamps().of_stream(1)[0].end, executor.stamps().of_stream(0)[0].begin);
}

// Which records all of a step.
class ReplayedBackend final : public ForwardingBackend {
 public:
  ReplayedBackend() : ReplayedBackend(make_null_backend()) {}

  void run(const Op& /*op*/, const Views& /*views*/, StreamId /*stream*/) override {}

  bool orders_streams() const override { return true; }

  bool records(const Op& /*op*/, std::span<const TensorType> /*operands*/) const override {
    return true;
  }

  std::unique_ptr<Recording> record(const std::function<void()>& runs) override {
    class Replayed final : public Recording {
     public:
      void replay() override {}
    };

    runs();
    return std::make_unique<Replayed>();
  }

 private:
  explicit ReplayedBackend(std::unique_ptr<Backend> to)
      : ForwardingBackend(*to), memory_(std::move(to)) {}

  std::unique_ptr<Backend> memory_;
};

TEST(StepStamps, OfAReplayAreOfAllThatItReplays) {
  const Program program = parse_program(kWaitingStream);
  ReplayedBackend backend;
  Executor executor(program, backend);
  executor.stamp_steps();
  for (std::size_t step = 0; step < 4; ++step) {
    executor.run_step();
    EXPECT_EQ(executor.num_replayed(), step == 0 ? 0U : 1U);
    EXPECT_THAT(steps_of(executor, 0), ElementsAre(1U));
    EXPECT_THAT(steps_of(executor, 1), ElementsAre(0U));
    if (step >= 2) {
      EXPECT_EQ(executor.stamps().of_stream(0)[0].begin, executor.stamps().of_stream(1)[0].begin);
      EXPECT_EQ(executor.stamps().of_stream(0)[0].end, executor.stamps().of_stream(1)[0].end);
    }
  }
}

}  // namespace
}  // namespace tessera
