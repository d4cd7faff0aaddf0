#include "tessera/simulate/memory_picture.h"

#include <cstddef>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Three instructions of 400 pixels each, in an arena of 1536 bytes on 600: 100 pixels are 256
// bytes.
constexpr std::string_view kThree = R"(program "three" microbatches 1 arena 1536 {
  stream "compute"
  buffer 0 "in" input 128 bytes at (0) persistent
  buffer 1 "a" activation 128 bytes at (256) live (forward 0, 0) .. (forward 0, 1)
  buffer 2 "b<1>" activation 512 bytes at (512) live (forward 0, 1) .. (forward 0, 2)
  buffer 3 "c" workspace 128 bytes at (256) live (forward 0, 2) .. (forward 0, 2)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=32] strides(1) = gelu(#0+0 f32[n=32] strides(1)) stream 0
    #2+0 f32[n=32] strides(1) = gelu(#1+0 f32[n=32] strides(1)) stream 0
    #3+0 f32[n=32] strides(1) = gelu(#2+0 f32[n=32] strides(1)) stream 0
  }
  call 0 microbatch 0 slots ()
}
)";

TEST(MemoryPicture, DrawsEachLifeAtItsOffset) {
  const std::string svg = draw_memory(parse_program(kThree));
  const auto rectangle = [](std::string_view place) {
    return HasSubstr(format("<rect {}", place));
  };
  EXPECT_THAT(
      svg,
      AllOf(rectangle("x=\"0.0\" y=\"500.0\" width=\"1200.0\" height=\"100.0\" fill=\"#b3261e\""),
            rectangle("x=\"0.0\" y=\"400.0\" width=\"800.0\" height=\"100.0\" fill=\"#1e7f5c\""),
            rectangle("x=\"400.0\" y=\"200.0\" width=\"800.0\" height=\"200.0\" fill=\"#1e7f5c\""),
            rectangle("x=\"800.0\" y=\"400.0\" width=\"400.0\" height=\"100.0\" fill=\"#8a8f98\""),
            HasSubstr("<title>b&lt;1&gt;: activation 512 B at 512</title>"),
            HasSubstr(">arena 1.50 KiB</text>"),
            Not(HasSubstr("<script"))));
}

// "in", "a" and "b" are there at the second instruction.
TEST(MemoryPicture, MarksWhereMostIsInUse) {
  EXPECT_THAT(draw_memory(parse_program(kThree)),
              AllOf(HasSubstr("d=\"M600.0 0V600\""),
                    HasSubstr(">peak 1.00 KiB</text>"),
                    HasSubstr(">forward, microbatch 0,</text>"),
                    HasSubstr(">instruction 1</text>"),
                    HasSubstr("<path fill=\"#2f6fb5\" d=\"M0 0h1200v12h-1200z\"/>")));
}

// Thousands of buffers side by side, each of which lives for an instruction.
Program with_lives(std::size_t count) {
  std::string buffers;
  std::string instructions;
  for (std::size_t i = 0; i < count; ++i) {
    buffers += format(
        "  buffer {0} \"name of buffer {0}\" activation 256 bytes at ({1}) live (forward 0, {2}) "
        ".. "
        "(forward 0, {2})\n",
        i + 1,
        256 * (1 + i % 40),
        i);
    instructions += format(
        "    #{}+0 f32[n=64] strides(1) = gelu(#0+0 f32[n=64] strides(1)) stream 0\n", i + 1);
  }
  return parse_program(format(
      "program \"many\" microbatches 1 arena {} {{\n  stream \"compute\"\n  buffer 0 \"in\" input "
      "256 bytes at (0) persistent\n{}  segment 0 \"forward\" forward 0 {{\n{}  }}\n  call 0 "
      "microbatch 0 slots ()\n}}\n",
      256 * 41,
      buffers,
      instructions));
}

TEST(MemoryPicture, HasAtMostSoManyBytes) {
  for (const std::size_t count : {100, 1000, 8000}) {
    const std::string svg = draw_memory(with_lives(count));
    EXPECT_LE(svg.size(), 200'000U) << count;
    EXPECT_GT(svg.size(), 10'000U) << count;
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
  }
}

// Lives of a pixel each, on which side by side nothing else comes, are one.
TEST(MemoryPicture, MergesWhatIsSmall) {
  std::string buffers;
  std::string instructions;
  for (int i = 0; i < 1200; ++i) {
    buffers += format(
        "  buffer {} \"b\" activation 256 bytes at (0) live (forward 0, {}) .. (forward 0, {})\n",
        i,
        i,
        i);
    instructions +=
        format("    #{0}+0 f32[n=64] strides(1) = gelu(#{0}+0 f32[n=64] strides(1)) stream 0\n", i);
  }
  const std::string svg = draw_memory(parse_program(
      format("program \"one\" microbatches 1 arena 256 {{\n  stream \"compute\"\n{}  segment 0 "
             "\"forward\" forward 0 {{\n{}  }}\n  call 0 microbatch 0 slots ()\n}}\n",
             buffers,
             instructions)));
  EXPECT_THAT(svg,
              AllOf(HasSubstr("<path fill=\"#1e7f5c\" d=\"M0 0h1200v600h-1200z\"/>"),
                    Not(HasSubstr("<title>"))));
}

TEST(MemoryPicture, WantsPlannedMemory) {
  Program program = parse_program(kThree);
  program.buffers[1].offsets.clear();
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { draw_memory(program); }),
              HasSubstr("buffer \"a\" has no place in the arena"));
}

}  // namespace
}  // namespace tessera
