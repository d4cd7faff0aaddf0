#include "tessera/program/first_microbatches.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Three microbatches, each with an output of its own, which all are made at the end.
constexpr std::string_view kLosses = R"(program "losses" microbatches 3 arena 2304 {
  stream "compute"
  pool 0 "inputs" 3 slots
  pool 1 "outputs" 3 slots
  pool 2 "stash" 3 slots
  buffer 0 "x" input 64 bytes pool 0 at (0, 256, 512) persistent
  buffer 1 "loss" activation 64 bytes pool 1 at (768, 1024, 1280) persistent
  buffer 2 "s" activation 64 bytes pool 2 at (1536, 1792, 2048) live (forward 0, 0) .. (update 0, 0)
  input "x" = #0+0 f32[n=16] strides(1)
  output "loss" = #1+0 f32[n=16] strides(1)
  segment 0 "forward" forward 0 {
    #2+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 0
  }
  segment 1 "update" update 0 {
    #1+0 f32[n=16] strides(1) = gelu(#2+0 f32[n=16] strides(1)) stream 0
  }
  call 0 microbatch 0 slots (0, 0, 0)
  call 0 microbatch 1 slots (1, 1, 1)
  call 0 microbatch 2 slots (2, 2, 2)
  call 1 microbatch 0 slots (0, 0, 0)
  call 1 microbatch 1 slots (1, 1, 1)
  call 1 microbatch 2 slots (2, 2, 2)
}
)";

std::string replaced(std::string_view from, std::string_view to) {
  std::string text(kLosses);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(FirstMicrobatches, LeaveEverythingWhereItWas) {
  const Program all = parse_program(kLosses);
  EXPECT_TRUE(equal(first_microbatches(all, 3), all));
  const Program two = first_microbatches(all, 2);
  EXPECT_EQ(two.num_microbatches, 2);
  EXPECT_EQ(two.buffers, all.buffers);
  EXPECT_EQ(two.pools, all.pools);
  ASSERT_EQ(two.calls.size(), 4U);
  for (std::size_t i = 0; i < two.calls.size(); ++i) {
    EXPECT_EQ(two.calls[i], all.calls[i < 2 ? i : i + 1]);
  }
}

TEST(FirstMicrobatches, AreSomeOfThoseThatThereAre) {
  const Program all = parse_program(kLosses);
  for (const std::int64_t count : {0, 4}) {
    EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { first_microbatches(all, count); }),
                HasSubstr("microbatches of 3"));
  }
}

TEST(FirstMicrobatches, MustEachMakeTheirOutput) {
  const auto fault = [](std::string_view from, std::string_view to) {
    return error_of(ErrorCode::kInternal, [&] { verify(parse_program(replaced(from, to))); });
  };
  EXPECT_THAT(
      fault("  call 1 microbatch 1 slots (1, 1, 1)\n", "  call 1 microbatch 1 slots (1, 2, 1)\n"),
      HasSubstr("\"loss\" (slot 2) is of microbatch 2"));
  // The second output is not made.
  EXPECT_THAT(fault("= gelu(#2+0 f32[n=16] strides(1)) stream 0",
                    "= gelu(#2+0 f32[n=16] strides(1)) stream 0 only_last"),
              HasSubstr("output \"loss\", #1+0 f32[n=16] strides(1), is not written by the end of "
                        "the step of microbatch 0"));
  EXPECT_THAT(fault("\"outputs\" 3 slots", "\"outputs\" 2 slots"), HasSubstr("has 3 offsets"));
  // A slot too few, whatever the calls.
  std::string text = replaced("\"outputs\" 3 slots", "\"outputs\" 2 slots");
  const auto change = [&](std::string_view from, std::string_view to) {
    text.replace(text.find(from), from.size(), to);
  };
  change("(768, 1024, 1280)", "(768, 1024)");
  change("  call 1 microbatch 2 slots (2, 2, 2)\n", "");
  change("live (forward 0, 0) .. (update 0, 0)", "live (forward 0, 0) .. (forward 0, 0)");
  change("gelu(#2+0", "gelu(#0+0");
  change("call 0 microbatch 2 slots (2, 2, 2)", "call 0 microbatch 2 slots (2, -1, 2)");
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { verify(parse_program(text)); }),
              HasSubstr("output \"loss\" has 2 slots for 3 microbatches"));
}

}  // namespace
}  // namespace tessera
