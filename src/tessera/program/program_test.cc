#include "tessera/program/program.h"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/passes/lower.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Two microbatches: forward makes b from a, backward makes c from b, update reads the gradient d.
constexpr std::string_view kStep = R"(program "step" microbatches 2 arena 768 {
  stream "compute"
  stream "copy"
  buffer 0 "a" input 64 bytes x2 at 0 persistent
  buffer 1 "b" activation 64 bytes x1 at 256 live (0, 0) .. (1, 0)
  buffer 2 "c" activation 64 bytes x1 at 320 live (1, 0) .. (1, 1)
  buffer 3 "d" gradient 64 bytes x1 at 128 persistent
  buffer 4 "w" parameter 64 bytes x1 at 192 persistent
  input "a" = #0+0 f32[n=16] strides(1)
  state "d" = #3+0 f32[n=16] strides(1)
  state "w" = #4+0 f32[n=16] strides(1)
  segment 0 "forward" forward chunk 0 {
    #1+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 0
  }
  segment 1 "backward" backward chunk 0 {
    #2+0 f32[n=16] strides(1) = gelu(#1+0 f32[n=16] strides(1)) stream 0 signal 1
    #3+0 f32[n=16] strides(1) = gelu(#2+0 f32[n=16] strides(1)) stream 1 wait 1 signal 2
  }
  segment 2 "update" update chunk 0 {
    #4+0 f32[n=16] strides(1) = add(#4+0 f32[n=16] strides(1), #3+0 f32[n=16] strides(1)) stream 0 wait 2
  }
  call 0 microbatch 0 instance 0
  call 1 microbatch 0 instance 0
  call 2 microbatch 0 instance 0
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

// Each line plants one fault in a program that is right.
TEST(Program, VerifierFindsFaults) {
  EXPECT_THAT(fault("= gelu(#1+0", "= gelu(#2+0"), HasSubstr("not written before"));
  EXPECT_THAT(fault("gelu(#0+0 f32[n=16]", "gelu(#3+0 f32[n=16]"), HasSubstr("not written before"));
  EXPECT_THAT(fault("activation 64 bytes x1 at 320", "activation 64 bytes x1 at 256"),
              HasSubstr("are alive at one time and overlap"));
  EXPECT_THAT(fault("at 192 persistent", "at 128 persistent"), HasSubstr("overlap"));
  EXPECT_THAT(fault("at 192 persistent", "at 100 persistent"),
              HasSubstr("does not lie in the arena"));
  EXPECT_THAT(fault("arena 768", "arena 320"), HasSubstr("does not lie in the arena"));
  EXPECT_THAT(fault("live (0, 0) .. (1, 0)", "live (0, 0) .. (0, 0)"),
              HasSubstr("outside its life"));
  EXPECT_THAT(fault("live (0, 0) .. (1, 0)", "live (0, 0) .. (2, 9)"), HasSubstr("never freed"));
  EXPECT_THAT(fault("#1+0 f32[n=16] strides(1) =", "#1+0 f32[n=17] strides(1) ="),
              HasSubstr("does not fit buffer 1"));
  EXPECT_THAT(fault("wait 1", "wait 7"), HasSubstr("never signalled"));
  EXPECT_THAT(fault("stream 1 wait 1", "stream 1"), HasSubstr("without an event in between"));
  EXPECT_THAT(fault("stream 0 wait 2", "stream 0"), HasSubstr("without an event in between"));
  EXPECT_THAT(fault("stream 1 wait", "stream 3 wait"), HasSubstr("stream 3"));
  EXPECT_THAT(fault("call 2 microbatch", "call 5 microbatch"), HasSubstr("call of segment 5"));
  EXPECT_THAT(fault("call 0 microbatch 0 instance 0", "call 0 microbatch 1 instance 2"),
              HasSubstr("instance 2 of buffer 0"));
}

TEST(Program, PartsMakeAWhole) {
  const std::string rows = R"(program "parts" microbatches 1 arena 256 {
  stream "compute"
  buffer 0 "a" input 32 bytes x1 at 0 persistent
  buffer 1 "whole" activation 64 bytes x1 at 64 live (0, 0) .. (0, 2)
  buffer 2 "out" activation 64 bytes x1 at 128 live (0, 2) .. (0, 2)
  input "a" = #0+0 f32[rows=2, n=4] strides(4, 1)
  segment 0 "forward" forward chunk 0 {
    #1+0 f32[rows=2, n=4] strides(8, 1) = gelu(#0+0 f32[rows=2, n=4] strides(4, 1)) stream 0
    #1+16 f32[rows=2, n=4] strides(8, 1) = gelu(#0+0 f32[rows=2, n=4] strides(4, 1)) stream 0
    #2+0 f32[rows=2, n=8] strides(8, 1) = gelu(#1+0 f32[rows=2, n=8] strides(8, 1)) stream 0
  }
  call 0 microbatch 0 instance 0
}
)";
  verify(parse_program(rows));
  EXPECT_THROW(verify(parse_program(replaced(rows, "#1+16 f32", "#1+0 f32"))), Error);
}

// Random lives and sizes: nothing that lives together overlaps, and the arena is not larger than
// the sum (verify() checks the first independently of the planner).
TEST(PlanMemory, RandomLivesNeverOverlap) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    Program program;
    program.name = "random";
    std::int64_t sum = 0;
    for (int i = 0; i < 80; ++i) {
      const auto begin = static_cast<std::int32_t>(random() % 50);
      Buffer buffer{.name = "b", .bytes = static_cast<std::int64_t>(random() % 5000)};
      buffer.category = static_cast<Category>(random() % 6);
      buffer.persistent = random() % 8 == 0;
      buffer.num_instances = 1 + static_cast<std::int64_t>(random() % 3);
      if (!buffer.persistent) {
        buffer.begin = {.action = 0, .instruction = begin};
        buffer.end = {.action = static_cast<std::int32_t>(random() % 2),
                      .instruction = begin + static_cast<std::int32_t>(random() % 20)};
      }
      sum += buffer.total_bytes();
      program.buffers.push_back(buffer);
    }
    const Program planned = plan_memory(program);
    verify(planned);
    EXPECT_LE(planned.arena_bytes, sum);
    EXPECT_TRUE(equal(planned, parse_program(to_string(planned))));
  }
}

TEST(PlanMemory, ReusesMemoryOfTheDead) {
  Program program;
  program.name = "chain";
  for (std::int32_t i = 0; i < 10; ++i) {
    Buffer buffer{.name = "b", .bytes = 1024};
    buffer.begin = {.action = 0, .instruction = i};
    buffer.end = {.action = 0, .instruction = i + 1};
    program.buffers.push_back(buffer);
  }
  EXPECT_EQ(plan_memory(program).arena_bytes, 2048);
}

}  // namespace
}  // namespace tessera
