// Programs of more than two streams.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/ops/op.h"
#include "tessera/runtime/executor.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// The third stream waits for the second one, and not for the first.
constexpr std::string_view kThreeStreams = R"(program "three" microbatches 1 arena 1024 {
  stream "compute"
  stream "second"
  stream "third"
  buffer 0 "a" input 128 bytes at (0) persistent
  buffer 1 "b" activation 128 bytes at (256) live (forward 0, 0) .. (forward 0, 2)
  buffer 2 "c" activation 128 bytes at (512) live (forward 0, 1) .. (forward 0, 2)
  buffer 3 "d" activation 128 bytes at (768) persistent
  input "a" = #0+0 f32[n=32] strides(1)
  output "d" = #3+0 f32[n=32] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=32] strides(1) = gelu(#0+0 f32[n=32] strides(1)) stream 1 signal 1
    #2+0 f32[n=32] strides(1) = gelu(#1+0 f32[n=32] strides(1)) stream 2 wait 1 signal 2
    #3+0 f32[n=32] strides(1) = gelu(#2+0 f32[n=32] strides(1)) stream 0 wait 2
  }
  call 0 microbatch 0 slots ()
}
)";

// Kernels of the second stream begin late.
class LateBackend final : public Backend {
 public:
  std::string_view name() const override { return "late"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return cpu_->allocate(bytes); }

  void draw(const Initial& initial, const View& out) override { cpu_->draw(initial, out); }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return cpu_->workspace_bytes(op, operands, results);
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    if (stream == StreamId{1}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      TESSERA_REQUIRE(!fails, ErrorCode::kInvalidData, "a bad token");
    }
    cpu_->run(op, views, stream);
  }

  void synchronize() override {}

  void abort(std::string_view /*reason*/) override {}

  std::atomic<bool> fails = false;

 private:
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
};

TEST(Executor, AStreamWaitsForAnother) {
  const Program program = parse_program(kThreeStreams);
  verify(program);
  LateBackend backend;
  Executor executor(program, backend);
  const auto floats = [&](const Binding& binding) {
    const std::span<std::byte> bytes = executor.bytes(binding);
    return std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
  };
  for (const float value : {1.0F, -0.5F, 2.0F}) {
    std::ranges::fill(floats(program.inputs[0]), value);
    executor.run_step();
    double expected = value;
    for (int i = 0; i < 3; ++i) {
      const double inner = std::sqrt(2 / M_PI) * (expected + 0.044715 * std::pow(expected, 3));
      expected *= 0.5 * (1 + std::tanh(inner));
    }
    EXPECT_THAT(floats(program.outputs[0]),
                testing::Each(testing::FloatNear(static_cast<float>(expected), 1e-6F)));
  }
  // What it waits for fails: so does it, and what the first stream waits for.
  backend.fails = true;
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { executor.run_step(); }),
              HasSubstr("a bad token (segment forward, microbatch 0, instruction 0: gelu)"));
}

// Transfers of a step that a backend begins, on streams that it orders.
constexpr std::string_view kTransfers = R"(program "sends" microbatches 1 arena 1024 {
  stream "compute"
  stream "comm"
  stream "send"
  stream "receive"
  buffer 0 "a" input 128 bytes at (0) persistent
  buffer 1 "b" activation 128 bytes at (256) live (forward 0, 0) .. (forward 0, 3)
  buffer 2 "c" activation 128 bytes at (512) persistent
  input "a" = #0+0 f32[n=32] strides(1)
  output "c" = #2+0 f32[n=32] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=32] strides(1) = receive {axes="pipeline=2", from=1, number=3, type="f32[n=32]"}() stream 3 signal 1
    send {axes="pipeline=2", to=1, number=2}(#0+0 f32[n=32] strides(1)) stream 2
    send {axes="pipeline=2", to=1, number=2}(#0+0 f32[n=32] strides(1)) stream 2 signal 2
    #2+0 f32[n=32] strides(1) = gelu(#1+0 f32[n=32] strides(1)) stream 0 wait 1
    fence() stream 0 wait 2
  }
  call 0 microbatch 0 slots ()
}
)";

// Notes the channels that it is to make.
class ChannelsBackend final : public Backend {
 public:
  std::string_view name() const override { return "channels"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return cpu_->allocate(bytes); }

  void draw(const Initial&, const View&) override {}

  std::int64_t workspace_bytes(const Op&, std::span<const View>, std::span<const View>) override {
    return 0;
  }

  void run(const Op&, const Views&, StreamId) override { ++num_runs; }

  bool orders_streams() const override { return is_ordering; }

  void make_channels(std::span<const PlacedTransfer> transfers) override {
    EXPECT_EQ(num_runs, 0);
    for (const PlacedTransfer& transfer : transfers) {
      made.push_back(format("{} on {}", info(*transfer.op).name, transfer.stream.at()));
    }
  }

  void synchronize() override {}

  void abort(std::string_view /*reason*/) override {}

  bool is_ordering = false;
  int num_runs = 0;
  std::vector<std::string> made;

 private:
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
};

// Of a backend that begins transfers only in the first step, when ranks are known to agree; of the
// others with the executor, since they wait for nobody.
TEST(Executor, ChannelsAreMadeOnceInTheOrderOfTheirPlaces) {
  const Program program = parse_program(kTransfers);
  verify(program);
  const auto expected = testing::ElementsAre("send on 2", "receive on 3");
  for (const bool is_ordering : {false, true}) {
    ChannelsBackend backend;
    backend.is_ordering = is_ordering;
    Executor executor(program, backend);
    if (is_ordering) {
      EXPECT_THAT(backend.made, testing::IsEmpty());
      executor.run_step();
      executor.run_step();
    }
    EXPECT_THAT(backend.made, expected);
    EXPECT_THAT(error_of(ErrorCode::kUnsupported, [&] { executor.profile_step(); }),
                HasSubstr("ranks would wait for each other"));
  }
}

}  // namespace
}  // namespace tessera
