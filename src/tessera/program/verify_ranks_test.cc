#include "tessera/program/verify_ranks.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/ir/graph.h"
#include "tessera/mesh/cluster.h"
#include "tessera/ops/collective_legs.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/program/assign_slots.h"
#include "tessera/passes/program/lower.h"
#include "tessera/passes/program/overlap.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/operand_types.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Two layers of one weight each: slices over data, products folded over tensor.
constexpr std::string_view kTwoLayers = R"(graph "layers" {
  %0: f32[batch=4, embed=16] = input "x"
  %1: f32[slice=128] = parameter "w0" normal(0, 1, 0)
  %2: f32[slice=128] = parameter "w1" normal(0, 1, 0)
  %3: f32[slice=128] = sum "g0"
  %4: f32[slice=128] = sum "g1"
  %5: f32[embed=16, embed=16] = gather_slices {axes="data=2", type="f32[embed=16, embed=16]"}(%1) @forward layer 0
  %6: f32[batch=4, embed=16] = matmul(%0, %5) @forward layer 0
  %7: f32[batch=4, embed=16] = all_reduce {axes="tensor=2"}(%6) @forward layer 0
  %8: f32[embed=16, embed=16] = gather_slices {axes="data=2", type="f32[embed=16, embed=16]"}(%2) @forward layer 1
  %9: f32[batch=4, embed=16] = matmul(%7, %8) @forward layer 1
  %10: f32[batch=4, embed=16] = all_reduce {axes="tensor=2"}(%9) @forward layer 1
  %11: f32[embed=16, embed=16] = matmul {transpose_a=true}(%7, %10) @weight_gradient layer 1
  %12: f32[slice=128] = reduce_slices {axes="data=2", slice=128}(%11) @weight_gradient layer 1
  %13: f32[slice=128] = add(%4, %12) @weight_gradient layer 1
  %14: f32[batch=4, embed=16] = matmul {transpose_b=true}(%10, %8) @backward layer 1
  %15: f32[batch=4, embed=16] = all_reduce {axes="tensor=2"}(%14) @backward layer 1
  %16: f32[embed=16, embed=16] = matmul {transpose_a=true}(%0, %15) @weight_gradient layer 0
  %17: f32[slice=128] = reduce_slices {axes="data=2", slice=128}(%16) @weight_gradient layer 0
  %18: f32[slice=128] = add(%3, %17) @weight_gradient layer 0
  %19: f32[slice=128] = add(%1, %18) @update
  %20: f32[slice=128] = add(%2, %13) @update
  update %3 = %18
  update %4 = %13
  update %1 = %19
  update %2 = %20
}
)";

// Folds over both axes that depend on nothing of each other.
constexpr std::string_view kTwoFolds = R"(graph "folds" {
  %0: f32[n=16] = input "a"
  %1: f32[n=16] = input "b"
  %2: f32[n=16] = all_reduce {axes="tensor=2"}(%0) @forward
  %3: f32[n=16] = all_reduce {axes="data=2"}(%1) @forward
  output "c" = %2
  output "d" = %3
}
)";

Program program_of(std::string_view graph, bool overlapped = true) {
  Program program = lower(parse_graph(graph), {.num_microbatches = 2, .workspace_bytes = {}});
  return plan_memory(
      assign_slots(overlapped ? overlap(std::move(program), 1) : std::move(program)));
}

Mesh square() {
  return make_mesh(local_cluster(4), {.data = 2, .tensor = 2});
}

// What is wrong where rank i runs program `class_of[i]`.
std::string fault(const Mesh& mesh,
                  const std::vector<Program>& programs,
                  const std::vector<std::size_t>& class_of) {
  std::vector<CollectiveSequence> classes;
  for (const Program& program : programs) {
    classes.push_back(collective_calls(program));
  }
  return error_of(ErrorCode::kInternal, [&] { verify_ranks(mesh, classes, class_of); });
}

Segment& segment(Program& program, std::string_view name) {
  return *std::ranges::find(program.segments, name, &Segment::name);
}

// The position of the nth instruction of an op.
std::size_t find_op(const Segment& segment, std::string_view op, int nth) {
  for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
    if (info(*segment.instructions[i].op).name == op && nth-- == 0) {
      return i;
    }
  }
  ADD_FAILURE() << "no " << op << " in " << segment.name;
  return 0;
}

// The calls of one group, as a hash of it alone would see them.
std::vector<std::string> along(const CollectiveSequence& sequence, std::string_view axis) {
  std::vector<std::string> calls;
  for (const CollectiveCall& call : sequence.calls) {
    if (call.axis == axis) {
      calls.push_back(to_string(call.what));
    }
  }
  return calls;
}

TEST(CollectiveCalls, KnowWhatEndsBefore) {
  const CollectiveSequence sequence = collective_calls(program_of(kTwoLayers));
  EXPECT_EQ(parse_collective_calls(to_string(sequence)), sequence);
  // Forward of the first microbatch: both gathers are issued at once, a product waits for its own.
  const std::string text = to_string(sequence);
  EXPECT_THAT(text, StartsWith("compute\tcomm\t\n"));
  EXPECT_EQ(sequence.calls[0].stream, 1U);
  EXPECT_EQ(to_string(sequence.calls[0].what),
            "all_gather of 1024 bytes f32 over 2 ranks, 512 sent, 1 times, of \"w0\" in microbatch "
            "0");
  EXPECT_EQ(sequence.calls[0].place,
            "segment forward.gather, microbatch 0, instruction 0: gather_slices");
  EXPECT_EQ(sequence.calls[1].after, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(sequence.calls[2].axis, "tensor");
  EXPECT_EQ(sequence.calls[2].after, (std::vector<std::size_t>{0, 1}));  // of two gathers, one
  EXPECT_EQ(sequence.calls[3].after, (std::vector<std::size_t>{1, 2}));
}

TEST(CollectiveCalls, ReadOnlyWhatIsWhole) {
  const auto error = [](std::string_view text) {
    return error_of(ErrorCode::kInternal, [&] { parse_collective_calls(text); });
  };
  // Stream, step, use, leg, axis, channel; the work; place, and what ended before.
  const auto line = [](std::string_view first, std::string_view work, std::string_view last) {
    return "compute\t\n" + std::string(first) + "\t" + std::string(work) + "\t" +
           std::string(last) + "\n";
  };
  constexpr std::string_view kFirst = "0\t7\t0\t0\tdata\t";
  constexpr std::string_view kWork = "all_reduce\tsum\tf32\t64\t1\t32\t2\t0\t0\t\"w\"";
  EXPECT_EQ(to_string(parse_collective_calls(line(kFirst, kWork, "there\t0"))),
            line(kFirst, kWork, "there\t0"));
  EXPECT_THAT(error(line(kFirst, kWork, "there")),
              HasSubstr("a collective of 17 fields, expected 18: \"0\t7\t0\t0\tdata\t\tall"));
  EXPECT_THAT(error(line(kFirst, kWork, "there\t1x")),
              HasSubstr("found \"1x\", expected a number"));
  EXPECT_THAT(error(line("1\t7\t0\t0\tdata\t", kWork, "there\t0")), HasSubstr("stream 1 of 1"));
  EXPECT_THAT(error(line("0\t7\t0\t0\t\tsend 0 1 pipeline=2", kWork, "there\t0")),
              HasSubstr("found \"send 0 1 pipeline=2\", expected a channel"));
  const auto with = [&](std::string_view before, std::string_view after) {
    std::string work(kWork);
    work.replace(work.find(before), before.size(), after);
    return error(line(kFirst, work, "there\t0"));
  };
  EXPECT_THAT(with("all_reduce", "fold"), HasSubstr("found \"fold\", expected a collective"));
  EXPECT_THAT(with("sum", "most"), HasSubstr("found \"most\", expected a fold"));
  EXPECT_THAT(with("f32", "f31"), HasSubstr("found \"f31\", expected a dtype"));
}

TEST(CollectiveCalls, ReduceOutwardsAndGatherInwards) {
  const auto axes = [](std::string_view op) {
    const std::string graph =
        "graph \"g\" {\n  %0: f32[n=16] = input \"a\"\n  %1: f32[n=16] = " + std::string(op) +
        "(%0) @forward\n  output \"c\" = %1\n}\n";
    std::vector<std::string> names;
    for (const CollectiveCall& call : collective_calls(program_of(graph, false)).calls) {
      names.push_back(call.axis);
    }
    names.resize(names.size() / 2);  // one of two microbatches
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(axes(R"(all_reduce {axes="a=2 one=1 b=4"})"), (Names{"a", "b", "b", "a"}));
  EXPECT_EQ(axes(R"(all_reduce {axes="a=2"})"), (Names{"a"}));
}

// The indices lead back to what the text is printed from.
TEST(CollectiveCalls, KnowTheirStepUseAndLeg) {
  const Program program = program_of(kTwoLayers);
  const IssueOrder order = issue_order(program);
  const CollectiveSequence sequence = collective_calls(program);
  ASSERT_FALSE(sequence.calls.empty());
  for (const CollectiveCall& call : sequence.calls) {
    const Instruction& instruction = instruction_of(program, order.steps.at(call.step));
    EXPECT_THAT(call.place, testing::EndsWith(info(*instruction.op).name));
    EXPECT_EQ(instruction.stream.at(), call.stream);
    const CollectiveUse use = collectives(*instruction.op, operand_types(instruction)).at(call.use);
    EXPECT_EQ(legs(use).at(call.leg).name, call.axis);
    EXPECT_EQ(use.bytes, call.what.bytes);
    EXPECT_EQ(use.kind, call.what.kind);
  }
}

TEST(VerifyRanks, AcceptsRealProgramsOnManyMeshes) {
  for (const bool overlapped : {false, true}) {
    const std::vector<CollectiveSequence> classes = {
        collective_calls(program_of(kTwoLayers, overlapped))};
    for (const MeshDegrees& degrees : {MeshDegrees{.data = 2, .tensor = 2},
                                       MeshDegrees{.data = 4, .tensor = 3},
                                       MeshDegrees{.data = 64, .tensor = 8}}) {
      const Mesh mesh = make_mesh(local_cluster(degrees.data * degrees.tensor), degrees);
      const std::vector<std::size_t> alike(static_cast<std::size_t>(mesh.num_ranks()), 0);
      verify_ranks(mesh, classes, alike);
    }
    // The same where every rank counts as a class of its own.
    const std::vector<CollectiveSequence> four(4, classes[0]);
    verify_ranks(square(), four, std::vector<std::size_t>{0, 1, 2, 3});
  }
}

// Ranks along one axis may differ where they do not talk: pairs 0, 1 and 2, 3 fold over tensor
// alone, other sizes in each pair.
TEST(VerifyRanks, AcceptsClassesThatDifferWhereTheyDoNotMeet) {
  const Program two = program_of(kTwoLayers);
  CollectiveSequence other = collective_calls(two);
  CollectiveSequence one = other;
  for (CollectiveSequence* sequence : {&one, &other}) {
    std::erase_if(sequence->calls, [](const CollectiveCall& call) { return call.axis == "data"; });
    for (CollectiveCall& call : sequence->calls) {
      call.after[1] = 0;
    }
  }
  other.calls.pop_back();
  verify_ranks(square(), std::vector{one, other}, std::vector<std::size_t>{0, 0, 1, 1});
  EXPECT_THAT(error_of(ErrorCode::kInternal,
                       [&] {
                         verify_ranks(square(),
                                      std::vector{one, other},
                                      std::vector<std::size_t>{0, 1, 0, 1});
                       }),
              HasSubstr("found rank 1 on stream compute at its end"));
}

TEST(VerifyRanks, CatchesASwappedOrder) {
  Program swapped = program_of(kTwoLayers);
  Segment& ahead = segment(swapped, "forward.gather");
  Segment& forward = segment(swapped, "forward");
  // Of equal sizes: only what is gathered differs.
  std::swap(ahead.instructions[find_op(ahead, "gather_slices", 0)].operands,
            forward.instructions[find_op(forward, "gather_slices", 0)].operands);
  EXPECT_THAT(
      fault(square(), {program_of(kTwoLayers), swapped}, {0, 0, 0, 1}),
      AllOf(StartsWith("collectives of the ranks do not match: found rank "),
            HasSubstr("rank 3 on stream comm at segment forward.gather, microbatch 0, instruction "
                      "0: gather_slices along data (all_gather of 1024 bytes f32 over 2 ranks, 512 "
                      "sent, 1 times, of \"w1\" in microbatch 0)"),
            HasSubstr("rank 1 on stream comm at segment forward.gather, microbatch 0, instruction "
                      "0: gather_slices along data")));
}

// Ranks of a pipeline number their tensors apart, but know what results are for.
TEST(VerifyRanks, CatchesASwappedOrderAlongAPipeline) {
  const Mesh mesh = make_mesh(local_cluster(2), {.pipeline = 2});
  constexpr std::string_view kFirst = R"(graph "first" {
  %0: f32[] = input "a"
  %1: f32[] = gelu(%0) @update
  %2: f32[] = all_reduce {axes="pipeline=2"}(%0) @update
  %3: f32[] = all_reduce {axes="pipeline=2"}(%1) @update
  %4: f32[] = all_reduce {axes="pipeline=2"}(%1) @update
  %5: f32[] = mul(%3, %4) @update
  output "loss" = %2
  output "norm" = %5
}
)";
  constexpr std::string_view kLast = R"(graph "last" {
  %0: f32[] = input "a"
  %1: f32[] = all_reduce {axes="pipeline=2"}(%0) @update
  %2: f32[] = all_reduce {axes="pipeline=2"}(%0) @update
  %3: f32[] = all_reduce {axes="pipeline=2"}(%0) @update
  %4: f32[] = mul(%2, %3) @update
  output "loss" = %1
  output "norm" = %4
}
)";
  const auto program = [](std::string_view graph) {
    return plan_memory(
        assign_slots(lower(parse_graph(graph), {.num_microbatches = 1, .workspace_bytes = {}})));
  };
  const Program first = program(kFirst);
  const Program last = program(kLast);
  verify_ranks(mesh,
               std::vector{collective_calls(first), collective_calls(last)},
               std::vector<std::size_t>{0, 1});
  const auto swapped = [&](int a, int b) {
    Program other = last;
    Segment& update = segment(other, "update");
    std::swap(update.instructions[find_op(update, "all_reduce", a)],
              update.instructions[find_op(update, "all_reduce", b)]);
    return fault(mesh, {first, other}, {0, 1});
  };
  EXPECT_THAT(swapped(0, 1),
              AllOf(StartsWith("collectives of the ranks do not match"),
                    HasSubstr("of output \"loss\" in microbatch 0"),
                    HasSubstr("of operand 0 of mul in microbatch 0")));
  EXPECT_THAT(swapped(1, 2),
              AllOf(HasSubstr("of operand 0 of mul"), HasSubstr("of operand 1 of mul")));
}

// Three ranks against one: those three are right.
TEST(VerifyRanks, CatchesAWrongSizeAndNamesTheOneThatDiffers) {
  const Mesh mesh = make_mesh(local_cluster(4), {.data = 4});
  const CollectiveSequence right = collective_calls(program_of(kTwoLayers));
  CollectiveSequence along_data = right;
  std::erase_if(along_data.calls, [](const CollectiveCall& call) { return call.axis != "data"; });
  for (CollectiveCall& call : along_data.calls) {
    call.after[0] = 0;
  }
  CollectiveSequence larger = along_data;
  larger.calls[1].what.bytes = 2048;
  EXPECT_THAT(error_of(ErrorCode::kInternal,
                       [&] {
                         verify_ranks(mesh,
                                      std::vector{larger, along_data},
                                      std::vector<std::size_t>{0, 1, 1, 1});
                       }),
              AllOf(HasSubstr("found rank 0 on stream comm at segment forward, microbatch 0, "
                              "instruction 0: gather_slices along data (all_gather of 2048 bytes"),
                    HasSubstr("expected rank 1 on stream comm at segment forward, microbatch 0, "
                              "instruction 0: gather_slices along data (all_gather of 1024 "
                              "bytes")));
}

TEST(VerifyRanks, CatchesAMissingMember) {
  Program without = program_of(kTwoLayers);
  Segment& backward = segment(without, "backward");
  backward.instructions.erase(backward.instructions.begin() +
                              static_cast<std::ptrdiff_t>(find_op(backward, "all_reduce", 0)));
  // It is the last on its stream, so that rank 2 comes to its end.
  EXPECT_THAT(fault(square(), {program_of(kTwoLayers), without}, {0, 0, 1, 0}),
              AllOf(StartsWith("a rank misses a collective that others wait in: found rank 2 on "
                               "stream compute at its end, after segment forward, microbatch 1"),
                    HasSubstr("expected the collective of rank 3 on stream compute at segment "
                              "backward, microbatch 1"),
                    HasSubstr("all_reduce along tensor (all_reduce sum of 256 bytes f32")));
  // One in the middle: the next that it comes to is not the others'.
  Program earlier = program_of(kTwoLayers);
  Segment& forward = segment(earlier, "forward");
  forward.instructions.erase(forward.instructions.begin() +
                             static_cast<std::ptrdiff_t>(find_op(forward, "all_reduce", 0)));
  EXPECT_THAT(fault(square(), {program_of(kTwoLayers), earlier}, {0, 1, 0, 0}),
              AllOf(StartsWith("collectives of the ranks do not match"),
                    HasSubstr("rank 1 on stream compute at segment forward"),
                    HasSubstr("rank 0 on stream compute at segment forward")));
}

// Each group sees equal calls in equal order: 0 waits for 1 along tensor, which waits for 3 along
// data, and so on round the square.
TEST(VerifyRanks, CatchesACycleOverGroups) {
  const Program tensor_first = program_of(kTwoFolds, false);
  Program data_first = tensor_first;
  std::vector<Instruction>& forward = data_first.segments[0].instructions;
  std::swap(forward.at(0), forward.at(1));
  for (const std::string_view axis : {"tensor", "data"}) {
    EXPECT_EQ(along(collective_calls(tensor_first), axis),
              along(collective_calls(data_first), axis));
  }
  const std::string text = fault(square(), {tensor_first, data_first}, {0, 1, 1, 0});
  EXPECT_THAT(
      text,
      AllOf(StartsWith("collectives of the ranks wait for each other: rank 0 on stream compute at "
                       "segment forward, microbatch 0, instruction 0: all_reduce along tensor"),
            HasSubstr("waits for rank 1 on stream compute at segment forward, microbatch 0, "
                      "instruction 0: all_reduce along data"),
            HasSubstr("waits for rank 3 on"),
            HasSubstr("waits for rank 2 on"),
            HasSubstr("waits for rank 0 again")));
  // One rank alone of another order holds nobody up for ever.
  verify_ranks(square(),
               std::vector{collective_calls(tensor_first), collective_calls(data_first)},
               std::vector<std::size_t>{0, 1, 0, 0});
}

// Rank 0's stream "compute" waits for "comm", rank 1's the other way round.
TEST(VerifyRanks, CatchesACycleOverStreams) {
  const Mesh mesh = make_mesh(local_cluster(2), {.data = 2});
  const auto sequence = [](std::vector<std::size_t> compute, std::vector<std::size_t> comm) {
    return CollectiveSequence{.streams = {"compute", "comm"},
                              .calls = {{.stream = 0,
                                         .axis = "data",
                                         .what = {.kind = CollectiveKind::kAllReduce},
                                         .after = std::move(compute),
                                         .place = "fold"},
                                        {.stream = 1,
                                         .axis = "data",
                                         .what = {.kind = CollectiveKind::kAllGather},
                                         .after = std::move(comm),
                                         .place = "gather"}}};
  };
  const std::vector classes = {sequence({0, 1}, {0, 0}), sequence({0, 0}, {1, 0})};
  verify_ranks(mesh, classes, std::vector<std::size_t>{0, 0});
  verify_ranks(mesh, classes, std::vector<std::size_t>{1, 1});
  const std::string fold =
      " on stream compute at fold along data (all_reduce of 0 bytes f32 over 0 ranks, 0 sent, 0 "
      "times, in microbatch 0)";
  const std::string gather =
      " on stream comm at gather along data (all_gather of 0 bytes f32 over 0 ranks, 0 sent, 0 "
      "times, in microbatch 0)";
  EXPECT_EQ(error_of(ErrorCode::kInternal,
                     [&] { verify_ranks(mesh, classes, std::vector<std::size_t>{0, 1}); }),
            "collectives of the ranks wait for each other: rank 0" + fold + ", waits for rank 0" +
                gather + ", waits for rank 1" + gather + ", waits for rank 1" + fold +
                ", waits for rank 0 again");
}

TEST(VerifyRanks, NamesAnAxisThatTheMeshLacks) {
  EXPECT_THAT(fault(make_mesh(local_cluster(2), {.data = 2}), {program_of(kTwoLayers)}, {0, 0}),
              HasSubstr("talks along axis tensor, which the mesh lacks"));
}

}  // namespace
}  // namespace tessera
