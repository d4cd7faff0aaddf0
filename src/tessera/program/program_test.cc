#include "tessera/program/program.h"

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/program/freed_memory.h"
#include "tessera/program/region.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Two microbatches: forward makes b from a, backward makes c from b, update reads the gradient d.
constexpr std::string_view kStep = R"(program "step" microbatches 2 arena 3072 {
  stream "compute"
  stream "copy"
  pool 0 "inputs" 2 slots
  buffer 0 "a" input 64 bytes pool 0 at (0, 256) persistent
  buffer 1 "b" activation 64 bytes at (1024) live (forward 0, 0) .. (backward 0, 0)
  buffer 2 "c" activation 64 bytes at (1280) live (backward 0, 0) .. (backward 0, 1)
  buffer 3 "d" gradient 64 bytes at (512) persistent
  buffer 4 "w" parameter 64 bytes at (768) persistent
  buffer 5 "e" activation 64 bytes at (1536) persistent
  input "a" = #0+0 f32[n=16] strides(1)
  state "d" gradient of "w" = #3+0 f32[n=16] strides(1)
  state "w" parameter = #4+0 f32[n=16] strides(1)
  output "e" = #5+0 f32[n=16] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 0
  }
  segment 1 "backward" backward 0 {
    #2+0 f32[n=16] strides(1) = gelu(#1+0 f32[n=16] strides(1)) stream 0 signal 1
    #3+0 f32[n=16] strides(1) = gelu(#2+0 f32[n=16] strides(1)) stream 1 wait 1 signal 2
  }
  segment 2 "update" update 0 {
    #4+0 f32[n=16] strides(1) = add(#4+0 f32[n=16] strides(1), #3+0 f32[n=16] strides(1)) stream 0 wait 2
    #5+0 f32[n=16] strides(1) = gelu(#4+0 f32[n=16] strides(1)) stream 0
  }
  call 0 microbatch 0 slots (0)
  call 1 microbatch 0 slots (0)
  call 2 microbatch 0 slots (0)
}
)";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string fault(std::string_view from, std::string_view to) {
  try {
    verify(parse_program(replaced(std::string(kStep), from, to)));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  return "no fault found";
}

TEST(Program, TextIsStable) {
  const Program program = parse_program(kStep);
  EXPECT_EQ(to_string(program), kStep);
  EXPECT_TRUE(equal(program, parse_program(to_string(program))));
  verify(program);
}

// The second stream reads "s" and makes "r" while "t" is made, then "v" where "t" lay; "u" lies
// where "s" lay.
constexpr std::string_view kTwoStreams = R"(program "streams" microbatches 1 arena 1536 {
  stream "first"
  stream "compute"
  stream "comm"
  buffer 0 "a" input 64 bytes at (0) persistent
  buffer 1 "s" activation 64 bytes at (256) live (forward 0, 0) .. (forward 0, 2)
  buffer 2 "r" activation 64 bytes at (512) live (forward 0, 1) .. (forward 0, 3)
  buffer 3 "t" activation 64 bytes at (768) live (forward 0, 2) .. (forward 0, 3)
  buffer 4 "u" activation 64 bytes at (256) live (forward 0, 3) .. (forward 0, 5)
  buffer 5 "v" activation 64 bytes at (768) live (forward 0, 4) .. (forward 0, 5)
  buffer 6 "w" workspace 64 bytes at (1280) live (forward 0, 1) .. (forward 0, 2)
  buffer 7 "out" activation 64 bytes at (1024) persistent
  input "a" = #0+0 f32[n=16] strides(1)
  output "out" = #7+0 f32[n=16] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 1 layer 3 signal 0
    #2+0 f32[n=16] strides(1) = gelu(#1+0 f32[n=16] strides(1)) workspace 6 stream 2 layer 3 wait 0 signal 1
    #3+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 1
    #4+0 f32[n=16] strides(1) = add(#3+0 f32[n=16] strides(1), #2+0 f32[n=16] strides(1)) stream 1 wait 1 signal 2
    #5+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 2 wait 2 signal 3
    #7+0 f32[n=16] strides(1) = add(#4+0 f32[n=16] strides(1), #5+0 f32[n=16] strides(1)) stream 1 wait 3
  }
  call 0 microbatch 0 slots ()
}
)";

std::string stream_fault(
    const std::vector<std::pair<std::string_view, std::string_view>>& changes) {
  std::string text(kTwoStreams);
  for (const auto& [from, to] : changes) {
    text = replaced(std::move(text), from, to);
  }
  return error_of(ErrorCode::kInternal, [&] { verify(parse_program(text)); });
}

// Bytes that another stream may still use are not free, whatever the buffers' lives say.
TEST(Program, VerifierOrdersStreamsThatShareBytes) {
  verify(parse_program(kTwoStreams));
  EXPECT_EQ(to_string(parse_program(kTwoStreams)), kTwoStreams);
  // A wait that is missing: for a result, and before memory is used anew.
  EXPECT_THAT(stream_fault({{"stream 1 wait 1 signal 2", "stream 1 signal 2"}}),
              HasSubstr("\"r\" was written on stream comm without an event in between"));
  EXPECT_THAT(
      stream_fault({{"stream 2 wait 2", "stream 2"}}),
      HasSubstr("\"v\" takes bytes that were used before on stream compute without an event"));
  // A life that ends before the other stream has read, and one whose bytes are used too early.
  EXPECT_THAT(stream_fault({{"at (256) live (forward 0, 0) .. (forward 0, 2)",
                             "at (256) live (forward 0, 0) .. (forward 0, 1)"},
                            {"at (768) live (forward 0, 2) .. (forward 0, 3)",
                             "at (256) live (forward 0, 2) .. (forward 0, 3)"},
                            {"at (256) live (forward 0, 3) .. (forward 0, 5)",
                             "at (768) live (forward 0, 3) .. (forward 0, 5)"},
                            {"at (768) live (forward 0, 4)", "at (256) live (forward 0, 4)"}}),
              HasSubstr("\"t\" takes bytes that were used before on stream comm without an event"));
  EXPECT_THAT(stream_fault({{"at (512) live (forward 0, 1)", "at (768) live (forward 0, 1)"}}),
              HasSubstr("are alive at one time and overlap"));
  // The same of a workspace.
  EXPECT_THAT(stream_fault({{"at (1280) live (forward 0, 1) .. (forward 0, 2)",
                             "at (768) live (forward 0, 1) .. (forward 0, 1)"}}),
              HasSubstr("\"t\" takes bytes that were used before on stream comm without an event"));
  EXPECT_THAT(
      stream_fault(
          {{"arena 1536", "arena 1792"},
           {"at (768) live (forward 0, 2)", "at (1536) live (forward 0, 2)"},
           {"at (256) live (forward 0, 3)", "at (1280) live (forward 0, 3)"},
           {"stream 1 wait 1 signal 2", "workspace 6 stream 1 wait 1 signal 2"},
           {"at (1280) live (forward 0, 1) .. (forward 0, 2)",
            "at (256) live (forward 0, 3) .. (forward 0, 3)"},
           {"workspace 6 stream 2", "stream 2"},
           {"add(#3+0 f32[n=16] strides(1), #2+0", "add(#3+0 f32[n=16] strides(1), #3+0"},
           {"wait 1 signal 2", "signal 2"},
           {"live (forward 0, 1) .. (forward 0, 3)", "live (forward 0, 1) .. (forward 0, 2)"}}),
      HasSubstr("\"w\" takes bytes that were used before on stream comm without an event"));
}

// The second stream reads "g" of a microbatch while the next one's forward runs, up to the fence.
constexpr std::string_view kIntoTheNext = R"(program "next" microbatches 2 arena 1792 {
  stream "compute"
  stream "comm"
  pool 0 "inputs" 2 slots
  buffer 0 "a" input 64 bytes pool 0 at (0, 256) persistent
  buffer 1 "b" activation 64 bytes at (512) live (forward 0, 0) .. (backward 0, 0)
  buffer 2 "c" activation 64 bytes at (768) live (forward 0 piece 1, 0) .. (backward 0, 0)
  buffer 3 "g" activation 64 bytes at (1024) live (backward 0, 0) .. (backward 0 fence, 0)
  buffer 4 "sum" gradient 64 bytes at (1280) persistent
  buffer 5 "out" activation 64 bytes at (1536) persistent
  input "a" = #0+0 f32[n=16] strides(1)
  state "sum" sum = #4+0 f32[n=16] strides(1)
  output "out" = #5+0 f32[n=16] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 0
  }
  segment 1 "forward.piece1" forward 0 piece 1 {
    #2+0 f32[n=16] strides(1) = gelu(#1+0 f32[n=16] strides(1)) stream 0
  }
  segment 2 "backward" backward 0 {
    #3+0 f32[n=16] strides(1) = add(#1+0 f32[n=16] strides(1), #2+0 f32[n=16] strides(1)) stream 0
    #4+0 f32[n=16] strides(1) = gelu(#3+0 f32[n=16] strides(1)) stream 1 signal 1
  }
  segment 3 "backward.fence" backward 0 fence {
    fence() stream 0 wait 1
  }
  segment 4 "update" update 0 {
    #5+0 f32[n=16] strides(1) = gelu(#4+0 f32[n=16] strides(1)) stream 0
  }
  call 0 microbatch 0 slots (0)
  call 1 microbatch 0 slots (0)
  call 2 microbatch 0 slots (0)
  call 0 microbatch 1 slots (1)
  call 3 microbatch 0 slots (0)
  call 1 microbatch 1 slots (1)
  call 2 microbatch 1 slots (1)
  call 3 microbatch 1 slots (1)
  call 4 microbatch 0 slots (0)
}
)";

TEST(Program, ALifeMayReachIntoTheNextMicrobatch) {
  const std::string text(kIntoTheNext);
  verify(parse_program(text));
  EXPECT_EQ(to_string(parse_program(text)), text);
  const auto planted = [&](std::string_view from, std::string_view to) {
    return error_of(ErrorCode::kInternal, [&] { verify(parse_program(replaced(text, from, to))); });
  };
  // "b" would lie over "g" in the next forward, before the fence.
  EXPECT_THAT(planted("at (512) live (forward 0, 0)", "at (1024) live (forward 0, 0)"),
              HasSubstr("are alive at one time and overlap"));
  EXPECT_THAT(planted("stream 0 wait 1", "stream 0"),
              HasSubstr("\"g\" takes bytes that were used before on stream comm without an event"));
  const std::vector<MemoryRow> rows = memory_by_category(parse_program(text));
  EXPECT_EQ(rows[5].category, Category::kActivation);
  EXPECT_EQ(rows[5].peak_bytes, 4 * kArenaAlignment);  // out, b, c, g
}

// Against a look at every byte.
TEST(FreedMemory, KnowsTheLastUsesOfEveryByte) {
  std::mt19937 random(3);
  const auto draw = [&](std::size_t below) { return static_cast<std::int64_t>(random() % below); };
  FreedMemory freed;
  std::array<Uses, 64> by_byte;
  for (int i = 0; i < 4000; ++i) {
    const std::int64_t begin = draw(64);
    const std::int64_t end = begin + draw(static_cast<std::size_t>(65 - begin));
    Uses expected;
    for (std::int64_t byte = begin; byte < end; ++byte) {
      Uses& uses = by_byte.at(static_cast<std::size_t>(byte));
      expected.add(uses);
      uses.clear();
    }
    ASSERT_EQ(freed.take(begin, end), expected) << begin << " to " << end;
    if (draw(2) == 0) {
      Uses uses;
      uses.add({.stream = {static_cast<std::int32_t>(draw(3))}, .count = draw(100)});
      uses.add({.stream = {static_cast<std::int32_t>(draw(3))}, .count = draw(100)});
      freed.add(begin, end, uses);
      std::fill(by_byte.begin() + begin, by_byte.begin() + end, uses);
    }
    const bool none_known = std::ranges::all_of(by_byte, &Uses::empty);
    EXPECT_EQ(freed.empty(), none_known);
  }
}

// Each line plants one fault in a program that is right.
TEST(Program, VerifierFindsFaults) {
  EXPECT_THAT(fault("= gelu(#1+0", "= gelu(#2+0"), HasSubstr("not written before"));
  EXPECT_THAT(fault("gelu(#0+0 f32[n=16]", "gelu(#3+0 f32[n=16]"), HasSubstr("not written before"));
  EXPECT_THAT(fault("activation 64 bytes at (1280)", "activation 64 bytes at (1024)"),
              HasSubstr("are alive at one time and overlap"));
  EXPECT_THAT(fault("at (768) persistent", "at (512) persistent"), HasSubstr("overlap"));
  EXPECT_THAT(fault("at (768) persistent", "at (400) persistent"),
              HasSubstr("does not lie in the arena"));
  EXPECT_THAT(fault("arena 3072", "arena 1280"), HasSubstr("does not lie in the arena"));
  EXPECT_THAT(
      fault("live (forward 0, 0) .. (backward 0, 0)", "live (forward 0, 0) .. (forward 0, 0)"),
      HasSubstr("outside its life"));
  EXPECT_THAT(
      fault("live (forward 0, 0) .. (backward 0, 0)", "live (forward 0, 0) .. (update 0, 9)"),
      HasSubstr("begins or ends with instruction 9 of update, which has 2"));
  EXPECT_THAT(fault("#1+0 f32[n=16] strides(1) =", "#1+0 f32[n=17] strides(1) ="),
              HasSubstr("does not fit buffer 1"));
  EXPECT_THAT(fault("wait 1", "wait 7"), HasSubstr("never signalled"));
  // Stream 0 has done all that stands before an instruction of another.
  EXPECT_EQ(fault("stream 1 wait 1", "stream 1"), "no fault found");
  EXPECT_THAT(fault("stream 0 wait 2", "stream 0"), HasSubstr("without an event in between"));
  EXPECT_THAT(fault("stream 1 wait", "stream 3 wait"), HasSubstr("stream 3"));
  EXPECT_THAT(fault("call 2 microbatch", "call 5 microbatch"), HasSubstr("call of segment 5"));
  EXPECT_THAT(fault("call 0 microbatch 0 slots (0)", "call 0 microbatch 1 slots (2)"),
              HasSubstr("slot 2 of pool \"inputs\" with 2"));
  EXPECT_THAT(fault("call 0 microbatch 0 slots (0)", "call 0 microbatch 1 slots (-1)"),
              HasSubstr("slot -1 of pool \"inputs\" with 2"));
  EXPECT_THAT(fault("call 0 microbatch 0 slots (0)", "call 0 microbatch 0 slots (1)"),
              HasSubstr("buffer 0 \"a\" (slot 1) is of microbatch 1"));
  EXPECT_THAT(fault("call 0 microbatch 0 slots (0)", "call 0 microbatch 0 slots ()"),
              HasSubstr("call 0 (forward, microbatch 0) has slots of 0 pools of 1"));
  EXPECT_THAT(fault("\"inputs\" 2 slots", "\"inputs\" 3 slots"),
              HasSubstr("buffer 0 \"a\" has 2 offsets for 3 slots"));
  EXPECT_THAT(fault("bytes pool 0", "bytes pool 1"), HasSubstr("buffer 0 \"a\" in pool 1 of 1"));
  EXPECT_THAT(fault("  buffer 0", "  event 1 pool 4\n  buffer 0"), HasSubstr("event 1 of pool 4"));
  EXPECT_THAT(fault("call 0 microbatch 0", "call 0 microbatch 2"), HasSubstr("microbatch 2 of 2"));
  EXPECT_THAT(fault("  call 1", "  call 0 microbatch 1 slots (1)\n  call 1"),
              HasSubstr("begins again while it lives"));
  EXPECT_THAT(
      fault("live (backward 0, 0) .. (backward 0, 1)", "live (backward 0, 1) .. (backward 0, 0)"),
      HasSubstr("outside its life"));
  EXPECT_THAT(fault("live (forward 0, 0)", "live (forward 0, -1)"),
              HasSubstr("buffer 1 \"b\" begins or ends with instruction -1 of forward"));
  EXPECT_THAT(fault("live (forward 0, 0)", "live (forward 1, 0)"),
              HasSubstr("begins or ends with instruction 0 of forward.1, which has 0"));
  EXPECT_THAT(fault("stream 0 wait 2", "workspace 4 stream 0 wait 2"),
              HasSubstr("workspace 4 also holds #4+0"));
  EXPECT_THAT(fault("= add(#4+0 f32[n=16] strides(1), ", "= add("),
              HasSubstr("1 operands and 1 results, expected 2 and 1"));
}

TEST(Program, VerifierFindsWrongStrides) {
  const std::string from = "#1+0 f32[n=16] strides(1) =";
  EXPECT_THAT(fault(from, "#1+0 f32[n=16] strides(0) ="), HasSubstr("overlap"));
  EXPECT_THAT(fault(from, "#1+0 f32[n=16] strides(-1) ="), HasSubstr("overlap"));
  EXPECT_THAT(fault(from, "#1+0 f32[r=4, n=4] strides(3, 1) ="), HasSubstr("overlap"));
  EXPECT_THAT(fault(from, "#1+0 f32[n=2] strides(16) ="), HasSubstr("does not fit buffer 1"));
  EXPECT_THAT(fault(from, "#1+0 f32[a=2, b=2, c=2] strides(7, 3, 1) ="),
              HasSubstr("not rows of one pitch"));
  EXPECT_THAT(fault(from, "#1+0 f32[n=16] strides() ="), HasSubstr("another rank"));
  EXPECT_THAT(fault(from, "#1+0 f32[n=0] strides(1) ="), HasSubstr("not positive"));
  EXPECT_THAT(fault(from, "#1+-4 f32[n=16] strides(1) ="), HasSubstr("at an element"));
  EXPECT_THAT(fault(from, "#1+2 f32[n=8] strides(1) ="), HasSubstr("at an element"));
  EXPECT_THAT(fault(from, "#1+0 f32[n=16] strides(4611686018427387904) ="), HasSubstr("past 2^63"));
  EXPECT_THAT(fault(from, "#1+0 f32[n=2] strides(2305843009213693951) ="), HasSubstr("past 2^63"));
}

TEST(Program, VerifierChecksBindings) {
  for (const std::string binding :
       {"input \"a\" = #0", "state \"w\" parameter = #4", "output \"e\" = #5"}) {
    EXPECT_THAT(fault(binding + "+0", binding + "+4"),
                AllOf(HasSubstr("does not fit buffer"), HasSubstr(binding.substr(0, 5))));
    EXPECT_THAT(fault(binding, binding.substr(0, binding.size() - 1) + "9"),
                HasSubstr("there is no buffer 9"));
  }
  EXPECT_THAT(fault("at (1536) persistent", "at (1536) live (update 0, 1) .. (update 0, 1)"),
              HasSubstr("output \"e\""));
  EXPECT_THAT(fault("#5+0 f32[n=16] strides(1) = gelu", "#4+0 f32[n=16] strides(1) = gelu"),
              HasSubstr("output \"e\", #5+0 f32[n=16] strides(1), is not written"));
  EXPECT_THAT(fault("#5+0 f32[n=16] strides(1) = gelu(#4+0 f32[n=16]",
                    "#5+0 f32[n=15] strides(1) = gelu(#4+0 f32[n=15]"),
              HasSubstr("is not written by the end of the step"));
}

// All in one buffer, where the arena's checks see nothing: the columns of rows of 16, and a
// gradient that is added to.
TEST(Program, VerifierFindsOverlapsInsideABuffer) {
  const std::string right = R"(program "columns" microbatches 1 arena 1792 {
  stream "compute"
  buffer 0 "x" input 192 bytes at (0) persistent
  buffer 1 "y" activation 192 bytes at (768) persistent
  buffer 2 "g" parameter 64 bytes at (1536) persistent
  input "x" = #0+0 f32[r=4, n=12] strides(12, 1)
  state "g" parameter = #2+0 f32[n=4, m=4] strides(4, 1)
  segment 0 "backward" backward 0 {
    #1+0 f32[r=4, n=12] strides(12, 1) = gelu(#0+0 f32[r=4, n=12] strides(12, 1)) stream 0
    #1+16 f32[r=4, n=4] strides(12, 1), #1+32 f32[r=4, n=4] strides(12, 1) = swiglu_backward(#1+0 f32[r=4, n=4] strides(12, 1), #1+16 f32[r=4, n=4] strides(12, 1), #1+32 f32[r=4, n=4] strides(12, 1)) stream 0
    #2+0 f32[n=4, m=4] strides(4, 1) = matmul {transpose_a=true, accumulate=true}(#0+0 f32[r=4, n=4] strides(12, 1), #0+16 f32[r=4, m=4] strides(12, 1), #2+0 f32[n=4, m=4] strides(4, 1)) stream 0
  }
  call 0 microbatch 0 slots ()
}
)";
  const auto planted = [&](std::string_view from, std::string_view to) {
    try {
      verify(parse_program(replaced(right, from, to)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      return std::string(error.what());
    }
    return std::string("no fault found");
  };
  verify(parse_program(right));
  const std::string result = ", #1+32 f32[r=4, n=4] strides(12, 1) = ";
  EXPECT_THAT(planted(result, ", #1+0 f32[r=4, n=4] strides(12, 1) = "),
              HasSubstr("overlaps operand 0, #1+0 f32[r=4, n=4] strides(12, 1), which the op does "
                        "not allow"));
  EXPECT_THAT(planted(result, ", #1+16 f32[r=4, n=4] strides(12, 1) = "),
              HasSubstr("results 0 and 1 overlap in buffer 1"));
  EXPECT_THAT(planted(result, ", #1+36 f32[r=4, n=3] strides(12, 1) = "),
              HasSubstr("does not lie exactly over operand 2"));
  EXPECT_THAT(planted("#2+0 f32[n=4, m=4] strides(4, 1) = matmul",
                      "#1+0 f32[n=4, m=4] strides(4, 1) = matmul"),
              HasSubstr("does not lie exactly over operand 2"));
}

// Against a look at every byte.
TEST(Region, OverlapOfRandomTensors) {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(below));
  };
  const auto tensor = [&](std::int64_t pitch) {
    return TensorRef{.buffer = {0},
                     .offset = draw(40),
                     .type = {.dtype = DType::kU8,
                              .dims = {{.name = "rows", .bound = 1 + draw(5)},
                                       {.name = "n", .bound = 1 + draw(pitch)}}},
                     .strides = {pitch, 1}};
  };
  const auto bytes = [](const TensorRef& t) {
    std::set<std::int64_t> result;
    for (std::int64_t row = 0; row < t.type.dims[0].bound; ++row) {
      for (std::int64_t i = 0; i < t.type.dims[1].bound; ++i) {
        result.insert(t.offset + row * t.strides[0] + i);
      }
    }
    return result;
  };
  int num_overlapping = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t pitch = 1 + draw(12);
    const TensorRef a = tensor(pitch);
    const TensorRef b = tensor(draw(2) == 0 ? pitch : 1 + draw(12));
    const std::set<std::int64_t> in_a = bytes(a);
    const std::set<std::int64_t> in_b = bytes(b);
    const bool expected = std::any_of(
        in_a.begin(), in_a.end(), [&](std::int64_t byte) { return in_b.contains(byte); });
    EXPECT_EQ(overlap(region_of(a), region_of(b)), expected)
        << to_string(a) << " and " << to_string(b);
    num_overlapping += expected ? 1 : 0;
  }
  EXPECT_GT(num_overlapping, 1000);
  EXPECT_LT(num_overlapping, 19000);
}

TEST(Program, PartsMakeAWhole) {
  const std::string rows = R"(program "parts" microbatches 1 arena 1024 {
  stream "compute"
  buffer 0 "a" input 32 bytes at (0) persistent
  buffer 1 "whole" activation 64 bytes at (256) live (forward 0, 0) .. (forward 0, 2)
  buffer 2 "out" activation 64 bytes at (512) live (forward 0, 2) .. (forward 0, 2)
  input "a" = #0+0 f32[rows=2, n=4] strides(4, 1)
  segment 0 "forward" forward 0 {
    #1+0 f32[rows=2, n=4] strides(8, 1) = gelu(#0+0 f32[rows=2, n=4] strides(4, 1)) stream 0
    #1+16 f32[rows=2, n=4] strides(8, 1) = gelu(#0+0 f32[rows=2, n=4] strides(4, 1)) stream 0
    #2+0 f32[rows=2, n=8] strides(8, 1) = gelu(#1+0 f32[rows=2, n=8] strides(8, 1)) stream 0
  }
  call 0 microbatch 0 slots ()
}
)";
  verify(parse_program(rows));
  EXPECT_THROW(verify(parse_program(replaced(rows, "#1+16 f32", "#1+0 f32"))), Error);
}

}  // namespace
}  // namespace tessera
