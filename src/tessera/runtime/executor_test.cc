#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/null/null_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/ir/op.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A backend that notes what it is asked for. Its kernels do nothing, or fail.
class RecordingBackend final : public Backend {
 public:
  struct Run {
    std::string op;
    std::vector<View> in;
    std::vector<View> out;
    std::span<std::byte> workspace;
    StreamId stream;
  };

  std::string_view name() const override { return "recording"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    allocated.push_back(bytes);
    return memory_->allocate(bytes);
  }

  void draw(const Initial&, const View&) override {}

  std::int64_t workspace_bytes(const Op&, std::span<const View>, std::span<const View>) override {
    return workspace;
  }

  bool orders_streams() const override { return has_ordered_streams; }

  void signal(std::size_t number, StreamId stream) override {
    given.push_back(format("signal {} on {}", number, stream.at()));
  }

  void wait(std::size_t number, StreamId stream) override {
    given.push_back(format("wait {} on {}", number, stream.at()));
  }

  bool records(const Op& op, std::span<const TensorType> /*operands*/) const override {
    return to_string(op) != not_recorded;
  }

  std::unique_ptr<Recording> record(const std::function<void()>& enqueue) override {
    class Replayed final : public Recording {
     public:
      Replayed(std::vector<Run> recorded, std::vector<Run>& runs)
          : recorded_(std::move(recorded)), runs_(runs) {}

      void replay() override { std::ranges::copy(recorded_, std::back_inserter(runs_)); }

     private:
      std::vector<Run> recorded_;
      std::vector<Run>& runs_;
    };

    const std::vector<Run> before = runs;
    enqueue();
    const auto first = runs.begin() + static_cast<std::ptrdiff_t>(before.size());
    std::vector<Run> recorded(first, runs.end());
    runs = before;
    num_recorded.push_back(recorded.size());
    return std::make_unique<Replayed>(std::move(recorded), runs);
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    runs.push_back({.op = to_string(op),
                    .in = {views.in.begin(), views.in.end()},
                    .out = {views.out.begin(), views.out.end()},
                    .workspace = views.workspace,
                    .stream = stream});
    given.push_back(format("{} on {}", info(op).name, stream.at()));
    TESSERA_REQUIRE(runs.size() != fail_at, ErrorCode::kInvalidData, "a bad token");
  }

  void synchronize() override {}

  void abort(std::string_view reason) override { aborted_with = reason; }

  std::vector<std::int64_t> allocated;
  std::string not_recorded;
  std::vector<std::size_t> num_recorded;  // runs of each recording
  std::vector<Run> runs;
  std::int64_t workspace = 0;  // that every op needs
  bool has_ordered_streams = false;
  std::vector<std::string> given;  // ops, signals and waits, in order
  std::size_t fail_at = 0;         // the run that fails, from 1; 0: none
  std::string aborted_with;

 private:
  std::unique_ptr<Backend> memory_ = make_null_backend();
};

// Two microbatches of x; the weight's second row is added to the sum of both.
constexpr std::string_view kStep = R"(program "step" microbatches 2 arena 2048 {
  stream "compute"
  pool 0 "inputs" 2 slots
  buffer 0 "x" input 16 bytes pool 0 at (0, 256) persistent
  buffer 1 "w" parameter 32 bytes at (512) persistent
  buffer 2 "factor" input 4 bytes at (768) persistent
  buffer 3 "y" activation 16 bytes at (1024) live (forward 0, 0) .. (forward 0, 1)
  buffer 4 "loss" activation 4 bytes at (1280) persistent
  buffer 5 "workspace" workspace 96 bytes at (1536) live (forward 0, 1) .. (forward 0, 1)
  input "x" = #0+0 f32[n=4] strides(1)
  scalar "factor" = #2+0 f32[] strides()
  state "w" parameter = #1+0 f32[r=2, n=4] strides(4, 1)
  state "column" parameter = #1+4 f32[r=2, n=1] strides(4, 1)
  output "loss" = #4+0 f32[] strides()
  segment 0 "forward" forward 0 {
    #3+0 f32[n=4] strides(1) = scale(#0+0 f32[n=4] strides(1), #2+0 f32[] strides()) stream 0
    #4+0 f32[] strides() = add(#3+0 f32[n=4] strides(1), #1+16 f32[n=4] strides(1)) workspace 5 stream 0
  }
  call 0 microbatch 0 slots (0)
  call 0 microbatch 1 slots (1)
}
)";

// The second step replays what it recorded, each call with its own slot of x.
TEST(Executor, RunsTheCallListOnTheArena) {
  const Program program = parse_program(kStep);
  verify(program);
  RecordingBackend backend;
  Executor executor(program, backend);
  EXPECT_THAT(backend.allocated, ElementsAre(2048));
  EXPECT_EQ(executor.memory_bytes(), 2048);
  EXPECT_TRUE(backend.runs.empty());
  executor.run_step();
  EXPECT_EQ(executor.num_replayed(), 0U);
  EXPECT_THAT(backend.num_recorded, IsEmpty());
  executor.run_step();
  executor.run_step();
  EXPECT_EQ(executor.num_replayed(), 1U);
  EXPECT_THAT(backend.num_recorded, ElementsAre(4U)) << "once";
  EXPECT_EQ(backend.allocated.size(), 1U);
  ASSERT_EQ(backend.runs.size(), 12U);

  const std::byte* arena = executor.bytes(program.inputs[0]).data();
  const auto at = [&](const View& view) { return view.as<std::byte>() - arena; };
  for (std::size_t i = 0; i < backend.runs.size(); ++i) {
    const RecordingBackend::Run& run = backend.runs[i];
    const bool first = i % 2 == 0;
    EXPECT_EQ(run.op, first ? "scale" : "add");
    ASSERT_EQ(run.in.size(), 2U);
    ASSERT_EQ(run.out.size(), 1U);
    EXPECT_EQ(at(run.in[0]), first ? (i / 2 % 2 == 0 ? 0 : 256) : 1024);  // x by slot
    EXPECT_EQ(at(run.in[1]), first ? 768 : 512 + 16);
    EXPECT_EQ(at(run.out[0]), first ? 1024 : 1280);
    EXPECT_EQ(run.in[0].num_dims, 1);
    EXPECT_EQ(run.in[0].sizes[0], 4);
    EXPECT_EQ(run.workspace.size(), first ? 0U : 96U);
    EXPECT_TRUE(first || run.workspace.data() - arena == 1536);
  }
}

// What waits for others is run in between; a single op is not worth a recording.
TEST(Executor, RecordsWhatLiesBetween) {
  const Program program = parse_program(kStep);
  RecordingBackend backend;
  backend.not_recorded = "scale";
  Executor executor(program, backend);
  for (int step = 0; step < 3; ++step) {
    executor.run_step();
    EXPECT_EQ(executor.num_replayed(), 0U);
  }
  EXPECT_THAT(backend.num_recorded, IsEmpty());
  EXPECT_EQ(backend.runs.size(), 12U);
}

TEST(Executor, BindingsAreMemory) {
  const Program program = parse_program(kStep);
  RecordingBackend backend;
  Executor executor(program, backend);
  const auto x0 = executor.bytes(program.inputs[0], 0);
  const auto x1 = executor.bytes(program.inputs[0], 1);
  EXPECT_EQ(x0.size(), 16U);
  EXPECT_EQ(x1.data() - x0.data(), 256);
  executor.set_scalar("factor", 2.5F);
  float factor = 0.0F;
  std::memcpy(&factor, executor.bytes(program.scalars[0]).data(), sizeof factor);
  EXPECT_EQ(factor, 2.5F);
  EXPECT_EQ(executor.bytes(program.scalars[0]).data() - x0.data(), 768);
  const float loss = 4.25F;
  std::memcpy(executor.bytes(program.outputs[0]).data(), &loss, sizeof loss);
  EXPECT_EQ(executor.output_scalar("loss"), 4.25F);
  EXPECT_THROW(executor.set_scalar("loss", 1.0F), Error);
  EXPECT_THROW(executor.bytes(find_binding(program.states, "column")), Error);  // not contiguous
}

TEST(Executor, ErrorsNameTheInstruction) {
  const Program program = parse_program(kStep);
  RecordingBackend backend;
  Executor executor(program, backend);
  backend.fail_at = 4;
  try {
    executor.run_step();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_STREQ(error.what(), "a bad token (segment forward, microbatch 1, instruction 1: add)");
  }
  EXPECT_EQ(backend.runs.size(), 4U);
}

// kStep with an update in two calls, of which the first one writes the weight.
std::string with_update() {
  std::string text(kStep);
  const std::string end = "  call 0 microbatch 1 slots (1)\n";
  text.insert(text.find("  call 0 microbatch 0"),
              "  segment 1 \"update\" update 0 {\n"
              "    #1+0 f32[r=2, n=4] strides(4, 1) = scale(#1+0 f32[r=2, n=4] strides(4, 1), "
              "#2+0 f32[] strides()) stream 0\n"
              "  }\n");
  text.insert(text.find(end) + end.size(),
              "  call 1 microbatch 0 slots (0)\n"
              "  call 1 microbatch 0 slots (0)\n");
  return text;
}

// The numbers of the question, from 1, that is answered with yes first.
std::size_t over_at = 0;    // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): see below
std::size_t num_asked = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): see below

// Without state of its own, as a question to what a signal handler has noted.
bool is_over() {
  return ++num_asked >= over_at;
}

TEST(Executor, GivesUpAStepBetweenTwoCallsUntilItsUpdateBegins) {
  const Program program = parse_program(with_update());
  RecordingBackend backend;
  backend.not_recorded = "scale";
  Executor executor(program, backend);
  executor.give_up_where(is_over);
  // Of four calls the first one changes no state, and the third one is the first that does.
  for (const std::size_t call : {1, 2, 3}) {
    over_at = call;
    num_asked = 0;
    backend.runs.clear();
    EXPECT_THAT(error_of(ErrorCode::kTimeout, [&] { executor.run_step(); }),
                HasSubstr("the step under way is given up"));
    EXPECT_TRUE(executor.states_are_whole());
    EXPECT_EQ(backend.runs.size(), 2 * (call - 1));
  }
  over_at = 4;
  num_asked = 0;
  backend.runs.clear();
  executor.run_step();
  EXPECT_EQ(num_asked, 4U);
  EXPECT_EQ(backend.runs.size(), 6U) << "what has begun to change states comes to its end";
  EXPECT_TRUE(executor.states_are_whole()) << "those of this step";
  over_at = 1;
  num_asked = 0;
  executor.give_up_where(nullptr);
  executor.run_step();
  EXPECT_EQ(num_asked, 0U);
}

TEST(Executor, ProfilesEveryOp) {
  const Program program = parse_program(kStep);
  RecordingBackend backend;
  Executor executor(program, backend);
  const auto rows = executor.profile_step();
  EXPECT_EQ(backend.runs.size(), 4U);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_GE(rows[0].second, rows[1].second);
  EXPECT_NE(rows[0].first, rows[1].first);
}

// The second stream makes b, then c, from x while y is made.
constexpr std::string_view kTwoStreams = R"(program "streams" microbatches 2 arena 1792 {
  stream "compute"
  stream "comm"
  pool 0 "inputs" 2 slots
  buffer 0 "x" input 16 bytes pool 0 at (0, 256) persistent
  buffer 1 "b" activation 16 bytes at (512) persistent
  buffer 2 "c" activation 16 bytes at (768) persistent
  buffer 3 "y" activation 16 bytes at (1024) persistent
  buffer 4 "z" activation 16 bytes at (1280) persistent
  input "x" = #0+0 f32[n=4] strides(1)
  output "z" = #4+0 f32[n=4] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=4] strides(1) = gelu(#0+0 f32[n=4] strides(1)) stream 1 signal 0
    #2+0 f32[n=4] strides(1) = gelu(#1+0 f32[n=4] strides(1)) stream 1 signal 1
    #3+0 f32[n=4] strides(1) = add(#0+0 f32[n=4] strides(1), #0+0 f32[n=4] strides(1)) stream 0
    #4+0 f32[n=4] strides(1) = add(#3+0 f32[n=4] strides(1), #2+0 f32[n=4] strides(1)) stream 0 wait 1
  }
  call 0 microbatch 0 slots (0)
  call 0 microbatch 1 slots (1)
}
)";

std::string on_one_stream(std::string text) {
  for (std::size_t at = 0; (at = text.find("stream 1", at)) != std::string::npos;) {
    text.replace(at, 8, "stream 0");
  }
  return text;
}

std::vector<float> output_of(Executor& executor, bool profile) {
  for (std::int64_t m = 0; m < 2; ++m) {
    const auto bytes = executor.bytes(executor.program().inputs[0], m);
    const std::vector<float> x = {1.0F, 2.0F, 0.5F + static_cast<float>(m), -1.0F};
    std::memcpy(bytes.data(), x.data(), bytes.size());
  }
  if (profile) {
    executor.profile_step();
  } else {
    executor.run_step();
  }
  std::vector<float> z(4);
  std::memcpy(z.data(), executor.bytes(executor.program().outputs[0]).data(), 16);
  return z;
}

TEST(Executor, TwoStreamsComputeWhatOneDoes) {
  const Program program = parse_program(kTwoStreams);
  const Program in_order = parse_program(on_one_stream(std::string(kTwoStreams)));
  const auto backend = make_cpu_backend(1);
  Executor executor(program, *backend);
  Executor alone(in_order, *backend);
  const std::vector<float> expected = output_of(alone, false);
  EXPECT_NE(expected[0], 0.0F);
  EXPECT_EQ(alone.waited_seconds(), 0.0);
  for (int step = 0; step < 100; ++step) {
    ASSERT_EQ(output_of(executor, step % 10 == 9), expected);
  }
}

// A backend that orders streams gets both from this thread: what the second stream is given waits
// for all that stands before it, and the first waits where the program says so.
TEST(Executor, SaysToABackendWhatStreamsWaitFor) {
  const Program program = parse_program(kTwoStreams);
  RecordingBackend backend;
  backend.has_ordered_streams = true;
  backend.not_recorded = "add";
  Executor executor(program, backend);
  executor.run_step();
  // Of the two that the second stream signals the first waits for the later one.
  const std::vector<std::string> call = {"signal 1 on 0",
                                         "wait 1 on 1",
                                         "gelu on 1",
                                         "signal 1 on 0",
                                         "wait 1 on 1",
                                         "gelu on 1",
                                         "signal 0 on 1",
                                         "add on 0",
                                         "wait 0 on 0",
                                         "add on 0"};
  std::vector<std::string> expected = call;
  expected.insert(expected.end(), call.begin(), call.end());
  EXPECT_EQ(backend.given, expected);
}

// Then a step is one recording, in which streams wait for each other as when it runs.
TEST(Executor, RecordsBothStreamsOfABackendThatOrdersThem) {
  const Program program = parse_program(kTwoStreams);
  RecordingBackend backend;
  backend.has_ordered_streams = true;
  Executor executor(program, backend);
  executor.run_step();
  const std::vector<std::string> given = backend.given;
  const std::vector<RecordingBackend::Run> runs = backend.runs;
  EXPECT_THAT(backend.num_recorded, IsEmpty());
  backend.given.clear();
  for (std::size_t step = 2; step <= 4; ++step) {
    executor.run_step();
    EXPECT_EQ(backend.given, given);  // while it was recorded
    EXPECT_THAT(backend.num_recorded, ElementsAre(runs.size()));
    EXPECT_EQ(backend.runs.size(), step * runs.size());
    EXPECT_EQ(executor.num_replayed(), 1U);
  }
}

TEST(Executor, AnErrorEndsOrderedStreams) {
  const Program program = parse_program(kTwoStreams);
  RecordingBackend backend;
  backend.has_ordered_streams = true;
  backend.fail_at = 3;
  Executor executor(program, backend);
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { executor.run_step(); }),
              HasSubstr("a bad token (segment forward, microbatch 0, instruction 2: add)"));
  EXPECT_THAT(backend.aborted_with, HasSubstr("a bad token"));
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { executor.run_step(); }),
              HasSubstr("ended with an error in an earlier step"));
}

// Kernels that note where they run; those of the second stream may be slow or fail, and one of them
// waits for abort().
class StreamBackend final : public Backend {
 public:
  std::string_view name() const override { return "streams"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return memory_->allocate(bytes); }

  void draw(const Initial&, const View&) override {}

  std::int64_t workspace_bytes(const Op&, std::span<const View>, std::span<const View>) override {
    return 0;
  }

  void run(const Op& op, const Views&, StreamId stream) override {
    const std::size_t number = ++runs_of[stream.at()];
    if (stream == StreamId{0}) {
      ended_before.push_back(num_ended);
      if (number == fail_in_first) {
        runs_of[1].wait(0);
        fail(ErrorCode::kInvalidData, "a bad token");
      }
      return;
    }
    runs_of[1].notify_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (number == wait_in_second) {
      aborted.wait(false);
    }
    TESSERA_REQUIRE(number != fail_in_second, ErrorCode::kTimeout, "nobody in {}", to_string(op));
    ++num_ended;
  }

  void hand_over() override { ++num_handed_over; }

  void synchronize() override {}

  void abort(std::string_view reason) override {
    aborted_with = reason;
    aborted = true;
    aborted.notify_all();
  }

  std::array<std::atomic<std::size_t>, 2> runs_of = {};
  std::atomic<std::size_t> num_ended = 0;  // of the second stream
  std::size_t num_handed_over = 0;
  std::vector<std::size_t> ended_before;  // those that the first stream's runs saw
  std::size_t fail_in_first = 0;          // the run of the stream, from 1; 0: none
  std::size_t fail_in_second = 0;
  std::size_t wait_in_second = 0;
  std::atomic<bool> aborted = false;
  std::string aborted_with;

 private:
  std::unique_ptr<Backend> memory_ = make_null_backend();
};

TEST(Executor, WaitsForTheOtherStream) {
  const Program program = parse_program(kTwoStreams);
  StreamBackend backend;
  Executor executor(program, backend);
  executor.run_step();
  EXPECT_EQ(backend.num_ended, 4U);
  EXPECT_EQ(backend.num_handed_over, 4U);
  ASSERT_EQ(backend.ended_before.size(), 4U);
  EXPECT_EQ(backend.ended_before[1], 2U);
  EXPECT_EQ(backend.ended_before[3], 4U);
}

// The wait for c is met in microbatch 0, where c does not run.
TEST(Executor, RunsWhatIsOfTheLastMicrobatchThereAlone) {
  std::string text(kTwoStreams);
  const std::size_t at = text.find(" signal 1\n");
  ASSERT_NE(at, std::string::npos);
  text.insert(at + std::string_view(" signal 1").size(), " only_last");
  const Program program = parse_program(text);
  StreamBackend backend;
  Executor executor(program, backend);
  executor.run_step();
  EXPECT_EQ(backend.runs_of[0], 4U);
  EXPECT_EQ(backend.runs_of[1], 3U);
  ASSERT_EQ(backend.ended_before.size(), 4U);
  EXPECT_EQ(backend.ended_before[1], 1U);
  EXPECT_EQ(backend.ended_before[3], 3U);
}

TEST(Executor, AnErrorOfTheOtherStreamComesOutAtTheWait) {
  const Program program = parse_program(kTwoStreams);
  StreamBackend backend;
  Executor executor(program, backend);
  executor.run_step();
  backend.fail_in_second = 5;
  EXPECT_EQ(error_of(ErrorCode::kTimeout, [&] { executor.run_step(); }),
            "nobody in gelu (segment forward, microbatch 0, instruction 0: gelu)");
  EXPECT_EQ(backend.runs_of[0], 4U + 1);  // the add in front of the wait
  EXPECT_EQ(backend.runs_of[1], 5U);      // what stood behind it is dropped
  EXPECT_EQ(backend.aborted_with,
            "nobody in gelu (segment forward, microbatch 0, instruction 0: gelu)");
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { executor.run_step(); }),
              HasSubstr("ended with an error in an earlier step"));
}

TEST(Executor, AnErrorOfThisStreamEndsTheOther) {
  const Program program = parse_program(kTwoStreams);
  StreamBackend backend;
  backend.fail_in_first = 1;
  backend.wait_in_second = 1;  // nothing but abort() ends it
  {
    Executor executor(program, backend);
    EXPECT_EQ(error_of(ErrorCode::kInvalidData, [&] { executor.run_step(); }),
              "a bad token (segment forward, microbatch 0, instruction 2: add)");
  }
  EXPECT_EQ(backend.runs_of[1], 1U);
  EXPECT_TRUE(backend.aborted);
}

// A kernel would write over its neighbours.
TEST(Executor, RefusesAProgramOfAnotherTarget) {
  const Program program = parse_program(kTwoStreams);
  RecordingBackend backend;
  backend.workspace = 100;
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { Executor(program, backend); }),
              HasSubstr("needs 100 bytes of workspace on this backend and has 0: the program was "
                        "compiled for another target"));
}

// What a run takes is what `explain` says: one allocation of the plan's bytes, in which every view
// and every workspace lies.
TEST(Executor, AllocatesWhatThePlanSays) {
  const LlamaConfig config{
      .dim = 8, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 40};
  for (const bool recompute : {false, true}) {
    RecordingBackend backend;
    backend.workspace = 100;
    const Program program =
        compile_training(training_graph(describe_llama(config), 2, 6, DType::kF32),
                         {.update = {.num_microbatches = 2},
                          .recompute = recompute ? recompute_all() : RecomputeRules(),
                          .workspace_bytes = workspace_of(backend)});
    Executor executor(program, backend);
    executor.run_step();
    EXPECT_THAT(backend.allocated, ElementsAre(program.arena_bytes));
    const Binding& first = program.states[0];
    const std::byte* arena = executor.bytes(first).data() -
                             program[first.tensor.buffer].offsets[0] - first.tensor.offset;
    std::int64_t end = 0;
    for (const RecordingBackend::Run& run : backend.runs) {
      EXPECT_EQ(run.workspace.size(), 100U);
      end = std::max(end, run.workspace.data() + run.workspace.size() - arena);
      for (const auto* views : {&run.in, &run.out}) {
        for (const View& view : *views) {
          EXPECT_GE(view.as<std::byte>(), arena);
          end = std::max(end, view.as<std::byte>() - arena);
        }
      }
    }
    EXPECT_LE(end, program.arena_bytes);
    EXPECT_GT(end, program.arena_bytes / 2);
  }
}

}  // namespace
}  // namespace tessera
