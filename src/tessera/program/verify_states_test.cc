#include "tessera/program/verify_states.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Two ranks hold a parameter in halves, and a copy of the whole, which the update writes anew.
constexpr std::string_view kProgram = R"(program "copies" microbatches 1 arena 6144 {
  stream "compute"
  buffer 0 "w" parameter 1024 bytes at (0) persistent
  buffer 1 "copy" secondary 2048 bytes at (1024) persistent
  buffer 2 "m" optimizer 1024 bytes at (3072) persistent
  buffer 3 "dw" gradient 1024 bytes at (4096) persistent
  buffer 4 "keys" cache 1024 bytes at (5120) persistent
  state "w" parameter = #0+0 f32[slice=256] strides(1)
  state "copy of w" secondary of "w" wire "int8" block 64 = #1+0 f32[n=512] strides(1)
  state "dw" gradient of "w" = #3+0 f32[slice=256] strides(1)
  state "m" moment1 of "w" = #2+0 f32[slice=256] strides(1)
  state "keys" cache = #4+0 f32[slice=256] strides(1)
  segment 0 "update" update 0 {
    #1+0 f32[n=512] strides(1) = gather_slices {axes="data=2", type="f32[n=512]", wire="int8", block=64}(#0+0 f32[slice=256] strides(1)) stream 0
  }
  call 0 microbatch 0 slots ()
}
)";

Error fault_of(std::string_view from, std::string_view to) {
  std::string text(kProgram);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  try {
    verify(parse_program(text.replace(at, from.size(), to)));
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "");
}

std::string fault(std::string_view from, std::string_view to) {
  const Error error = fault_of(from, to);
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  return error.what();
}

TEST(ProgramStates, AreBoundWithRoleParameterAndWire) {
  const Program program = parse_program(kProgram);
  verify(program);
  EXPECT_EQ(to_string(program), kProgram);
  const StateBinding* const copy = find_state(program, "w", StateRole::kSecondary);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->name, "copy of w");
  EXPECT_EQ(copy->state,
            (State{.parameter = "w",
                   .role = StateRole::kSecondary,
                   .wire = {.formats = {WireFormat::kInt8}, .block = 64}}));
  EXPECT_EQ(find_state(program, "w", StateRole::kMaster), nullptr);
  EXPECT_EQ(find_state(program, "m", StateRole::kMoment1), nullptr);
}

TEST(ProgramStates, AreVerified) {
  EXPECT_THAT(fault("moment1 of \"w\"", "moment1 of \"v\""),
              HasSubstr("a moment1 of \"v\", which is no parameter (state \"m\")"));
  EXPECT_THAT(fault("state \"keys\" cache", "state \"keys\" cache of \"w\""),
              HasSubstr("a cache of parameter \"w\", expected of none (state \"keys\")"));
  EXPECT_THAT(fault("moment1 of \"w\"", "moment1 of \"w\" wire \"int8\""),
              HasSubstr("a moment1 with the wire \"int8\" of blocks of 256"));
  EXPECT_THAT(fault("gradient of", "master of"),
              HasSubstr("state \"dw\", a master, lies in buffer 3 \"dw\" for gradient"));
  EXPECT_THAT(fault("state \"keys\" cache", "state \"keys\" moment1 of \"w\""),
              HasSubstr("state \"keys\", a moment1, lies in buffer 4 \"keys\" for cache"));
  EXPECT_EQ(fault_of("block 64", "block 48").code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(fault_of("\"m\" moment1", "\"m\" moment3").what(),
              HasSubstr("expected the role of a state"));
}

TEST(ProgramStates, CopiesAreSentAsTheySay) {
  EXPECT_THAT(fault("wire \"int8\" block 64", "wire \"int4\" block 64"),
              HasSubstr("state \"copy of w\" has the wire \"int4\" of blocks of 64, its gather "
                        "\"int8\" of 64"));
  EXPECT_THAT(fault(" wire \"int8\" block 64", ""),
              HasSubstr("state \"copy of w\" has the wire \"\" of blocks of 256, its gather "
                        "\"int8\" of 64"));
  EXPECT_THAT(fault("block=64", "block=32"), HasSubstr("its gather \"int8\" of 32"));
  EXPECT_THAT(fault("\"m\" moment1 of", "\"m\" secondary of"),
              HasSubstr("state \"m\", a secondary, lies in buffer"));
  EXPECT_THAT(fault("#1+0 f32[n=512] strides(1) = gather_slices {axes=\"data=2\", "
                    "type=\"f32[n=512]\", wire=\"int8\", block=64}(#0+0 f32[slice=256] strides(1))",
                    "#0+0 f32[slice=256] strides(1) = add(#0+0 f32[slice=256] strides(1), #2+0 "
                    "f32[slice=256] strides(1))"),
              HasSubstr("the update of parameter \"w\" does not write its copy, state \"copy of "
                        "w\""));
}

// A start that gathers what the last update has left writes copies as that update would.
TEST(ProgramStates, CopiesOfAStartAreVerified) {
  std::string text(kProgram);
  const std::string_view update = "segment 0 \"update\" update 0";
  text.replace(text.find(update), update.size(), "segment 0 \"start\" start 0");
  verify(parse_program(text));
  const std::string_view block = "block=64";
  text.replace(text.find(block), block.size(), "block=32");
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { verify(parse_program(text)); }),
              HasSubstr("its gather \"int8\" of 32"));
}

}  // namespace
}  // namespace tessera
