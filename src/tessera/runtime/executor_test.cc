#include "tessera/runtime/executor.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/null/null_backend.h"
#include "tessera/base/error.h"
#include "tessera/ir/op.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/pipeline.h"
#include "tessera/train/step_program.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// A backend that notes what it is asked for. Its kernels do nothing, or fail.
class RecordingBackend final : public Backend {
 public:
  struct Run {
    std::string op;
    std::vector<View> in;
    std::vector<View> out;
    std::span<std::byte> workspace;
  };

  std::string_view name() const override { return "recording"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    allocated.push_back(bytes);
    return memory_->allocate(bytes);
  }

  std::int64_t workspace_bytes(const Op&, std::span<const View>, std::span<const View>) override {
    return 100;
  }

  void run(const Op& op, const Views& views) override {
    runs.push_back({.op = to_string(op),
                    .in = {views.in.begin(), views.in.end()},
                    .out = {views.out.begin(), views.out.end()},
                    .workspace = views.workspace});
    TESSERA_REQUIRE(runs.size() != fail_at, ErrorCode::kInvalidData, "a bad token");
  }

  std::vector<std::int64_t> allocated;
  std::vector<Run> runs;
  std::size_t fail_at = 0;  // the run that fails, from 1; 0: none

 private:
  std::unique_ptr<Backend> memory_ = make_null_backend();
};

// Two microbatches of x; the weight's second row is added to the sum of both.
constexpr std::string_view kStep = R"(program "step" microbatches 2 arena 512 {
  stream "compute"
  buffer 0 "x" input 16 bytes x2 at 0 persistent
  buffer 1 "w" parameter 32 bytes x1 at 128 persistent
  buffer 2 "factor" input 4 bytes x1 at 192 persistent
  buffer 3 "y" activation 16 bytes x1 at 256 live (0, 0) .. (0, 1)
  buffer 4 "loss" activation 4 bytes x1 at 320 persistent
  buffer 5 "workspace" workspace 96 bytes x1 at 384 live (0, 1) .. (0, 1)
  input "x" = #0+0 f32[n=4] strides(1)
  scalar "factor" = #2+0 f32[] strides()
  state "w" = #1+0 f32[r=2, n=4] strides(4, 1)
  state "column" = #1+4 f32[r=2, n=1] strides(4, 1)
  output "loss" = #4+0 f32[] strides()
  segment 0 "forward" forward chunk 0 {
    #3+0 f32[n=4] strides(1) = scale(#0+0 f32[n=4] strides(1), #2+0 f32[] strides()) stream 0
    #4+0 f32[] strides() = add(#3+0 f32[n=4] strides(1), #1+16 f32[n=4] strides(1)) workspace 5 stream 0
  }
  call 0 microbatch 0 instance 0
  call 0 microbatch 1 instance 1
}
)";

TEST(Executor, RunsTheCallListOnTheArena) {
  const Program program = parse_program(kStep);
  verify(program);
  RecordingBackend backend;
  Executor executor(program, backend);
  EXPECT_THAT(backend.allocated, ElementsAre(512));
  EXPECT_EQ(executor.memory_bytes(), 512);
  EXPECT_TRUE(backend.runs.empty());
  executor.run_step();
  executor.run_step();
  EXPECT_EQ(backend.allocated.size(), 1U);
  ASSERT_EQ(backend.runs.size(), 8U);

  const std::byte* arena = executor.bytes(program.inputs[0]).data();
  const auto at = [&](const View& view) { return view.as<std::byte>() - arena; };
  for (std::size_t i = 0; i < backend.runs.size(); ++i) {
    const RecordingBackend::Run& run = backend.runs[i];
    const bool first = i % 2 == 0;
    EXPECT_EQ(run.op, first ? "scale" : "add");
    ASSERT_EQ(run.in.size(), 2U);
    ASSERT_EQ(run.out.size(), 1U);
    EXPECT_EQ(at(run.in[0]), first ? (i / 2 % 2 == 0 ? 0 : 64) : 256);  // x by instance
    EXPECT_EQ(at(run.in[1]), first ? 192 : 128 + 16);
    EXPECT_EQ(at(run.out[0]), first ? 256 : 320);
    EXPECT_EQ(run.in[0].num_dims, 1);
    EXPECT_EQ(run.in[0].sizes[0], 4);
    EXPECT_EQ(run.workspace.size(), first ? 0U : 96U);
    EXPECT_TRUE(first || run.workspace.data() - arena == 384);
  }
}

TEST(Executor, BindingsAreMemory) {
  const Program program = parse_program(kStep);
  RecordingBackend backend;
  Executor executor(program, backend);
  const auto x0 = executor.bytes(program.inputs[0], 0);
  const auto x1 = executor.bytes(program.inputs[0], 1);
  EXPECT_EQ(x0.size(), 16U);
  EXPECT_EQ(x1.data() - x0.data(), 64);
  executor.set_scalar("factor", 2.5F);
  float factor = 0.0F;
  std::memcpy(&factor, executor.bytes(program.scalars[0]).data(), sizeof factor);
  EXPECT_EQ(factor, 2.5F);
  EXPECT_EQ(executor.bytes(program.scalars[0]).data() - x0.data(), 192);
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

// What a run takes is what `explain` says: one allocation of the plan's bytes, in which every view
// and every workspace lies.
TEST(Executor, AllocatesWhatThePlanSays) {
  const LlamaConfig config{
      .dim = 8, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 40};
  for (const bool recompute : {false, true}) {
    RecordingBackend backend;
    const Program program = compile_training(
        training_graph(describe_llama(config), 2, 6, DType::kF32),
        {.update = {.num_microbatches = 2},
         .recompute = recompute,
         .workspace_bytes = [&](const Op& op, std::span<const View> in, std::span<const View> out) {
           return backend.workspace_bytes(op, in, out);
         }});
    Executor executor(program, backend);
    executor.run_step();
    EXPECT_THAT(backend.allocated, ElementsAre(program.arena_bytes));
    const Binding& first = program.states[0];
    const std::byte* arena =
        executor.bytes(first).data() - program[first.tensor.buffer].offset - first.tensor.offset;
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
