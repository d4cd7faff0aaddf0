#include "tessera/passes/program/overlap.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/ir/graph.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/program/assign_slots.h"
#include "tessera/passes/program/lower.h"
#include "tessera/program/step_traffic.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::string names(const Program& program, const std::vector<TensorRef>& tensors) {
  std::string text;
  for (const TensorRef& tensor : tensors) {
    text += (text.empty() ? "" : ", ") + program[tensor.buffer].name;
  }
  return text;
}

std::string line(const Program& program, const Instruction& instruction) {
  std::string text = format("  {}: {}{}{}({})",
                            program.streams[instruction.stream.at()],
                            names(program, instruction.results),
                            instruction.results.empty() ? "" : " = ",
                            info(*instruction.op).name,
                            names(program, instruction.operands));
  for (const EventId event : instruction.waits) {
    text += format(" wait {}", event.index);
  }
  for (const EventId event : instruction.signals) {
    text += format(" signal {}", event.index);
  }
  return text + (instruction.only_last ? " only_last\n" : "\n");
}

// A line an instruction: buffers by name, what is on which stream, events; then the calls, and the
// lives.
std::string summary(const Program& program) {
  std::string text;
  for (const Segment& segment : program.segments) {
    text += segment.name + "\n";
    for (const Instruction& instruction : segment.instructions) {
      text += line(program, instruction);
    }
  }
  for (const Call& call : program.calls) {
    text += format("call {} {}\n", program[call.segment].name, call.microbatch);
  }
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.persistent) {
      text += format("{} {} {} to {} {}\n",
                     buffer.name,
                     to_string(buffer.begin.code),
                     buffer.begin.instruction,
                     to_string(buffer.end.code),
                     buffer.end.instruction);
    }
  }
  return text;
}

Program overlapped(std::string_view graph, std::int64_t microbatches, std::int64_t layers = 1) {
  Program program = overlap(
      lower(parse_graph(graph), {.num_microbatches = microbatches, .workspace_bytes = {}}), layers);
  verify(plan_memory(assign_slots(program)));
  return program;
}

// Three layers of one weight each, whose gradients are reduced and added up.
constexpr std::string_view kThreeLayers = R"(graph "layers" {
  %0: f32[batch=4, embed=16] = input "x"
  %1: f32[slice=256] = parameter "w0" normal(0, 1, 0)
  %2: f32[slice=256] = parameter "w1" normal(0, 1, 0)
  %3: f32[slice=256] = parameter "w2" normal(0, 1, 0)
  %4: f32[slice=256] = sum "g0"
  %5: f32[slice=256] = sum "g1"
  %6: f32[slice=256] = sum "g2"
  %7: f32[embed=16, embed=16] = gather_slices {axes="data=2", type="f32[embed=16, embed=16]"}(%1) @forward layer 0
  %8: f32[batch=4, embed=16] = matmul(%0, %7) @forward layer 0
  %9: f32[embed=16, embed=16] = gather_slices {axes="data=2", type="f32[embed=16, embed=16]"}(%2) @forward layer 1
  %10: f32[batch=4, embed=16] = matmul(%8, %9) @forward layer 1
  %11: f32[embed=16, embed=16] = gather_slices {axes="data=2", type="f32[embed=16, embed=16]"}(%3) @forward layer 2
  %12: f32[batch=4, embed=16] = matmul(%10, %11) @forward layer 2
  %13: f32[embed=16, embed=16] = matmul {transpose_a=true}(%10, %12) @weight_gradient layer 2
  %14: f32[slice=256] = reduce_slices {axes="data=2", slice=256}(%13) @weight_gradient layer 2
  %15: f32[slice=256] = add(%6, %14) @weight_gradient layer 2
  %16: f32[embed=16, embed=16] = gather_slices {axes="data=2", type="f32[embed=16, embed=16]"}(%3) @backward layer 2
  %17: f32[batch=4, embed=16] = matmul {transpose_b=true}(%12, %16) @backward layer 2
  %18: f32[embed=16, embed=16] = matmul {transpose_a=true}(%8, %17) @weight_gradient layer 1
  %19: f32[slice=256] = reduce_slices {axes="data=2", slice=256}(%18) @weight_gradient layer 1
  %20: f32[slice=256] = add(%5, %19) @weight_gradient layer 1
  %21: f32[embed=16, embed=16] = gather_slices {axes="data=2", type="f32[embed=16, embed=16]"}(%2) @backward layer 1
  %22: f32[batch=4, embed=16] = matmul {transpose_b=true}(%17, %21) @backward layer 1
  %23: f32[embed=16, embed=16] = matmul {transpose_a=true}(%0, %22) @weight_gradient layer 0
  %24: f32[slice=256] = reduce_slices {axes="data=2", slice=256}(%23) @weight_gradient layer 0
  %25: f32[slice=256] = add(%4, %24) @weight_gradient layer 0
  %26: f32[slice=256] = add(%1, %25) @update
  %27: f32[slice=256] = add(%2, %20) @update
  %28: f32[slice=256] = add(%3, %15) @update
  update %4 = %25
  update %5 = %20
  update %6 = %15
  update %1 = %26
  update %2 = %27
  update %3 = %28
}
)";

TEST(Overlap, GathersALayerAheadAndReducesALayerBehind) {
  EXPECT_EQ(summary(overlapped(kThreeLayers, 2)), R"(forward.gather
  comm: %7 = gather_slices(w0) signal 0
forward
  comm: %9 = gather_slices(w1) signal 1
  compute: %8 = matmul(x, %7) wait 0
  comm: %11 = gather_slices(w2) signal 2
  compute: %10 = matmul(%8, %9) wait 1
forward.piece1
  compute: %12 = matmul(%10, %11) wait 2
backward.gather
  comm: %16 = gather_slices(w2) signal 3
backward
  comm: %21 = gather_slices(w1) signal 4
  compute: %13 = matmul(%10, %12)
  comm: %14 = reduce_slices(%13)
  comm: g2 = add(g2, %14) signal 5
  compute: %17 = matmul(%12, %16) wait 3
  compute: %18 = matmul(%8, %17)
  comm: %19 = reduce_slices(%18)
  comm: g1 = add(g1, %19)
  compute: %22 = matmul(%17, %21) wait 4
backward.piece1
  compute: %23 = matmul(x, %22) wait 5
  comm: %24 = reduce_slices(%23)
  comm: g0 = add(g0, %24) signal 6
backward_first
  comm: %21 = gather_slices(w1) signal 4
  compute: %13 = matmul(%10, %12)
  comm: %14 = reduce_slices(%13)
  comm: g2 = cast(%14) signal 5
  compute: %17 = matmul(%12, %16) wait 3
  compute: %18 = matmul(%8, %17)
  comm: %19 = reduce_slices(%18)
  comm: g1 = cast(%19)
  compute: %22 = matmul(%17, %21) wait 4
backward.piece1_first
  compute: %23 = matmul(x, %22) wait 5
  comm: %24 = reduce_slices(%23)
  comm: g0 = cast(%24) signal 6
backward.fence
  compute: fence() wait 6
update
  compute: w0 = add(w0, g0)
  compute: w1 = add(w1, g1)
  compute: w2 = add(w2, g2)
call forward.gather 0
call forward 0
call backward.gather 0
call forward.piece1 0
call backward_first 0
call forward.gather 1
call backward.piece1_first 0
call forward 1
call backward.gather 1
call backward.fence 0
call forward.piece1 1
call backward 1
call backward.piece1 1
call backward.fence 1
call update 0
%7 forward.gather 0 to forward 1
%8 forward 1 to backward 5
%9 forward 0 to forward 3
%10 forward 3 to backward 1
%11 forward 2 to forward.piece1 0
%12 forward.piece1 0 to backward 4
%13 backward 1 to backward 8
%14 backward 2 to backward 8
%16 backward.gather 0 to backward 4
%17 backward 4 to backward 8
%18 backward 5 to backward.fence 0
%19 backward 6 to backward.fence 0
%21 backward 0 to backward 8
%22 backward 8 to backward.piece1 0
%23 backward.piece1 0 to backward.fence 0
%24 backward.piece1 1 to backward.fence 0
)");
}

TEST(Overlap, AWiderWindowGathersEarlierAndWaitsLater) {
  const std::string text = summary(overlapped(kThreeLayers, 2, 2));
  EXPECT_THAT(text, HasSubstr("  comm: %11 = gather_slices(w2) signal 2\n  compute: %8"));
  // What a code begins with is gathered two blocks before the end of the one before it.
  EXPECT_THAT(text,
              HasSubstr("forward.piece1\n  compute: %10 = matmul(%8, %9) wait 1\n  compute: %12"));
  EXPECT_THAT(text, HasSubstr("call forward 0\ncall backward.gather 0\ncall forward.piece1 0\n"));
  EXPECT_THAT(text, HasSubstr("  compute: %17 = matmul(%12, %16) wait 3\n"));
  // No reduction is waited for in this backward: the fence does, once the next forward's first
  // three blocks, which are all of it, are done.
  EXPECT_THAT(text, HasSubstr("  compute: %23 = matmul(x, %22)\n"));
  EXPECT_THAT(text,
              HasSubstr("call forward 1\ncall backward.gather 1\ncall forward.piece1 1\n"
                        "call backward.fence 0\ncall backward 1\n"));
  EXPECT_THAT(text, HasSubstr("%13 backward 0 to backward.fence 0\n"));
}

// Two forwards one after the other, as a pipeline calls them: no other segments, and what is
// gathered ahead or left to a fence is apart where two microbatches have it.
TEST(Overlap, CallsMayComeInAnyOrder) {
  for (const std::int64_t layers : {1, 2, 3}) {
    Program program =
        lower(parse_graph(kThreeLayers), {.num_microbatches = 4, .workspace_bytes = {}});
    std::vector<Call> calls = program.calls;
    ASSERT_EQ(calls.size(), 9U);
    // F0 F1 B0 F2 F3 B1 B2 B3, the update.
    for (std::size_t i = 0; const std::size_t from : {0, 2, 1, 4, 6, 3, 5, 7, 8}) {
      program.calls[i++] = calls[from];
    }
    const Program other = assign_slots(overlap(std::move(program), layers));
    verify(plan_memory(other));
    if (layers == 1) {
      const std::string text = summary(other);
      EXPECT_THAT(text,
                  HasSubstr("call forward.gather 0\ncall forward 0\ncall forward.gather 1\n"
                            "call forward.piece1 0\ncall forward 1\ncall backward.gather 0\n"
                            "call forward.piece1 1\ncall backward_first 0\n"));
      EXPECT_THAT(text, HasSubstr("call backward.fence 2\n"));
    }
    for (const Pool& pool : other.pools) {
      EXPECT_LE(pool.slots, pool.name == "inputs" ? 4 : pool.name == "stash" ? 3 : 2) << pool.name;
    }
  }
}

// Two layers, whose gradients are added up whole and reduced by the update.
constexpr std::string_view kReducedOnce = R"(graph "once" {
  %0: f32[batch=4, embed=16] = input "x"
  %1: f32[embed=16, embed=16] = parameter "w0" normal(0, 1, 0)
  %2: f32[embed=16, embed=16] = parameter "w1" normal(0, 1, 0)
  %3: f32[embed=16, embed=16] = sum "g0"
  %4: f32[embed=16, embed=16] = sum "g1"
  %5: f32[batch=4, embed=16] = matmul(%0, %1) @forward layer 0
  %6: f32[batch=4, embed=16] = matmul(%5, %2) @forward layer 1
  %7: f32[embed=16, embed=16] = matmul {transpose_a=true}(%5, %6) @weight_gradient layer 1
  %8: f32[embed=16, embed=16] = add(%4, %7) @weight_gradient layer 1
  %9: f32[batch=4, embed=16] = matmul {transpose_b=true}(%6, %2) @backward layer 1
  %10: f32[embed=16, embed=16] = matmul {transpose_a=true}(%0, %9) @weight_gradient layer 0
  %11: f32[embed=16, embed=16] = add(%3, %10) @weight_gradient layer 0
  %12: f32[embed=16, embed=16] = all_reduce_slices {axes="data=2"}(%11) @update
  %13: f32[embed=16, embed=16] = all_reduce_slices {axes="data=2"}(%8) @update
  %14: f32[embed=16, embed=16] = add(%1, %12) @update
  %15: f32[embed=16, embed=16] = add(%2, %13) @update
  update %3 = %11
  update %4 = %8
  update %1 = %14
  update %2 = %15
}
)";

TEST(Overlap, ReducesWholeGradientsInTheLastBackward) {
  const Program program = overlapped(kReducedOnce, 3);
  EXPECT_THAT(summary(program), HasSubstr(R"(backward
  compute: %7 = matmul(%5, %6)
  compute: g1 = add(g1, %7)
  comm: %13 = all_reduce_slices(g1) only_last
  compute: %9 = matmul(%6, w1)
  compute: %10 = matmul(x, %9)
  compute: g0 = add(g0, %10)
  comm: %12 = all_reduce_slices(g0) signal 0 only_last
backward_first
)"));
  EXPECT_THAT(summary(program), HasSubstr(R"(backward.fence
  compute: fence() wait 0
update
  compute: w0 = add(w0, %12)
  compute: w1 = add(w1, %13)
)"));
  EXPECT_THAT(summary(program),
              HasSubstr("call backward 2\ncall backward.fence 2\ncall update 0\n"));
  const Traffic three = step_traffic(program);
  EXPECT_EQ(three, step_traffic(overlapped(kReducedOnce, 2)));
  EXPECT_FALSE(three.empty());
}

// A forward that makes a gradient, as that of the loss does, which backward reads, too: the fence
// of the forward comes after backward's first two layers, when what only the first of them reads is
// long gone.
constexpr std::string_view kReadByBoth = R"(graph "both" {
  %0: f32[embed=16, embed=16] = input "x"
  %1: f32[slice=128] = sum "g"
  %2: f32[embed=16, embed=16] = gelu(%0) @forward layer 0
  %3: f32[slice=128] = reduce_slices {axes="data=2", slice=128}(%2) @forward layer 0
  %4: f32[slice=128] = add(%1, %3) @forward layer 0
  %5: f32[embed=16, embed=16] = matmul(%2, %2) @backward layer 2
  %6: f32[embed=16, embed=16] = matmul(%5, %5) @backward layer 1
  %7: f32[embed=16, embed=16] = matmul(%6, %6) @backward layer 0
  update %1 = %4
  output "dx" = %7
}
)";

TEST(Overlap, AForwardEndsWithAReductionOfWhatBackwardReads) {
  const std::string text = summary(overlapped(kReadByBoth, 3));
  EXPECT_THAT(text,
              HasSubstr("  comm: %3 = reduce_slices(%2) signal 0\n"
                        "  comm: g = add(g, %3) signal 1\n"
                        "  compute: fence() wait 0\n"));
  // Backward may run beside the rest.
  EXPECT_THAT(text, HasSubstr("forward.fence\n  compute: fence() wait 1\n"));
}

TEST(Overlap, LeavesAProgramWithoutStateOnTheWireAsItIs) {
  const Program alone = lower(parse_graph(R"(graph "alone" {
  %0: f32[n=4] = input "x"
  %1: f32[n=4] = all_reduce {axes="tensor=2"}(%0) @forward layer 0
  output "y" = %1
}
)"),
                              {.num_microbatches = 1, .workspace_bytes = {}});
  EXPECT_TRUE(equal(overlap(alone, 1), alone));
}

TEST(Overlap, NeedsALayer) {
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { overlap(Program{}, 0); }),
            "collectives 0 layers ahead: expected at least 1");
}

}  // namespace
}  // namespace tessera
