#include "tessera/plan/target.h"

#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/ops/matmul/matmul.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(Target, ReadsBackItsText) {
  for (const std::string_view name : target_names()) {
    const Target target = find_target(name);
    const std::string text = to_string(target);
    EXPECT_EQ(parse_target(text, "target"), target) << text;
    EXPECT_EQ(to_string(parse_target(text, "target")), text);
    EXPECT_EQ(target.is_device(), name != "cpu");
  }
}

TEST(Target, IsFoundAsClusterFilesCallIt) {
  EXPECT_EQ(find_target("H100 SXM"), find_target("h100"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [] { find_target("h10"); }),
              HasSubstr("\"h10\" is not a target, expected one of cpu, cuda, h100"));
}

TEST(Target, RefusesWhatItsTextGetsWrong) {
  const std::string good = to_string(find_target("h100"));
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return error_of(ErrorCode::kInvalidConfig, [&] { parse_target(text, "t.toml"); });
  };
  EXPECT_THAT(message("\"cuda\"", "\"tpu\""),
              HasSubstr("t.toml:1:8: kind: found string \"tpu\", expected \"cpu\" or \"cuda\""));
  EXPECT_THAT(message("processor", "procesor"), HasSubstr("unknown key \"procesor\""));
  EXPECT_THAT(message("memory =", "memori ="), HasSubstr("memori"));
  EXPECT_THAT(message("[device]", "[gadget]"), HasSubstr("gadget"));
}

// No library plans products for another processor's instructions.
TEST(Target, OfAnotherProcessorIsRefused) {
  Target other = cpu_target();
  other.processor = "z80";
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { workspace_query(other, 1); }),
              HasSubstr("a CPU with z80"));
}

// 32 MiB, which NVIDIA advises for Hopper, and 256 bytes.
TEST(Target, PlansWorkspaceOfADeviceWithoutIt) {
  const WorkspaceQuery query = workspace_query(find_target("h100"), 1);
  View matrix;
  matrix.dtype = DType::kF32;
  matrix.num_dims = 2;
  matrix.sizes = {8, 8};
  matrix.strides = {8, 1};
  const std::array<View, 2> operands = {matrix, matrix};
  EXPECT_EQ(query(*make_op(MatmulAttrs{}), operands, std::array{matrix}), (32 << 20) + 256);
}

TEST(Target, LeavesWhatLibrariesTake) {
  const Target target = find_target("h100");
  EXPECT_EQ(target.arena_limit(0), 80'000'000'000 - (std::int64_t{1} << 30));
  EXPECT_EQ(target.arena_limit(1000), target.arena_limit(0) - 1000);
  EXPECT_EQ(cuda_target().arena_limit(0), 0);
}

}  // namespace
}  // namespace tessera
