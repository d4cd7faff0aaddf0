#include <cstdint>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/ops/all_ops.h"

namespace tessera::conformance {
namespace {

const AxisSizes kAxes = {{.name = "data.node", .size = 4},
                         {.name = "data.one", .size = 1},
                         {.name = "data.cluster", .size = 2}};

// What a work is expected to be.
struct Expected {
  WorkKind kind = WorkKind::kStream;
  double read = 0.0;
  double written = 0.0;
  double again = 0.0;
  double flop = 0.0;
  std::int64_t times = 1;
};

constexpr WorkKind kWire = WorkKind::kWire;
constexpr WorkKind kFold = WorkKind::kFold;
constexpr WorkKind kStream = WorkKind::kStream;

void expect_works(const OpRef& op,
                  std::string_view operand,
                  const std::vector<Expected>& expected) {
  const TensorTypes in = {parse_tensor_type(operand)};
  const Works works = work(*op, in);
  ASSERT_EQ(works.size(), expected.size()) << to_string(*op);
  double read = 0.0;
  double written = 0.0;
  for (std::size_t i = 0; i < works.size(); ++i) {
    const Work& found = works[i];
    EXPECT_EQ(found.kind, expected[i].kind) << to_string(*op) << " " << i;
    EXPECT_EQ(found.bytes_read, expected[i].read) << to_string(*op) << " " << i;
    EXPECT_EQ(found.bytes_written, expected[i].written) << to_string(*op) << " " << i;
    EXPECT_EQ(found.bytes_again, expected[i].again) << to_string(*op) << " " << i;
    EXPECT_EQ(found.elementwise_flop, expected[i].flop) << to_string(*op) << " " << i;
    EXPECT_EQ(found.times, expected[i].times) << to_string(*op) << " " << i;
    read += found.bytes_read;
    written += found.bytes_written;
  }
  EXPECT_EQ(read, static_cast<double>(in[0].num_bytes()));
  EXPECT_EQ(written, static_cast<double>(infer(*op, in)[0].num_bytes()));
}

WireFormats formats(WireFormat inner, WireFormat outer) {
  return {inner, inner, outer};
}

constexpr WireFormat kF32 = WireFormat::kF32;
constexpr WireFormat kBF16 = WireFormat::kBF16;
constexpr WireFormat kInt8 = WireFormat::kInt8;

TEST(CollectiveWork, OfSumsIsAFoldOfEachLevelBehindTheWire) {
  // The first level leaves 16 of 64 elements.
  expect_works(make_op(ReduceSlicesAttrs{.axes = kAxes, .slice = 8}),
               "f32[embed=64]",
               {{.kind = kWire},
                {.kind = kFold, .read = 64 * 4, .again = 16 * 4, .flop = 48},
                {.kind = kFold, .written = 8 * 4, .again = 16 * 4, .flop = 8}});
  // The sums of other ranks arrive as they are.
  for (const OpRef& op :
       {make_op(AllReduceAttrs{.axes = kAxes}), make_op(AllReduceSlicesAttrs{.axes = kAxes})}) {
    expect_works(op,
                 "bf16[embed=64]",
                 {{.kind = kWire, .written = 56 * 2},
                  {.kind = kFold, .read = 64 * 2, .again = 16 * 2, .flop = 48},
                  {.kind = kFold, .written = 8 * 2, .again = 16 * 2, .flop = 8}});
  }
  // With padding: of 8 slices of 8 elements the first level leaves 16.
  expect_works(make_op(ReduceSlicesAttrs{.axes = kAxes, .slice = 8}),
               "f32[embed=60]",
               {{.kind = kWire},
                {.kind = kFold, .read = 60 * 4, .again = 16 * 4, .flop = 45},
                {.kind = kFold, .written = 8 * 4, .again = 16 * 4, .flop = 7.5}});
}

TEST(CollectiveWork, AlongNoAxisIsACopy) {
  const AxisSizes one = {{.name = "data.one", .size = 1}};
  expect_works(make_op(AllReduceAttrs{.axes = one}),
               "f32[embed=64]",
               {{.kind = kWire}, {.kind = kStream, .read = 256, .written = 256}});
  expect_works(make_op(ReduceSlicesAttrs{.axes = one, .slice = 256, .wire = {kInt8}}),
               "f32[embed=64]",
               {{.kind = kWire}, {.kind = kStream, .read = 256, .written = 1024}});
}

// A block of 256 elements is 260 bytes of codes. Each rank encodes its own slice alone.
TEST(CollectiveWork, OfAGatherIsOfOwnCodesAndThenOfAll) {
  const auto gather = [](const WireFormats& wire) {
    return make_op(GatherSlicesAttrs{
        .axes = kAxes, .type = parse_tensor_type("f32[embed=2048]"), .wire = wire});
  };
  const std::string_view slice = "f32[slice=256]";
  expect_works(gather({}), slice, {{.kind = kWire, .read = 1024, .written = 8192}});
  expect_works(gather({kF32}), slice, {{.kind = kWire, .read = 1024, .written = 8192}});
  expect_works(
      gather({kInt8}),
      slice,
      {{.read = 1024, .again = 260}, {.kind = kWire}, {.written = 8192, .again = 8 * 260}});
  // The outer level leaves 512 elements, of which the inner one makes codes anew.
  expect_works(gather(formats(kBF16, kInt8)),
               slice,
               {{.read = 1024, .again = 260},
                {.kind = kWire},
                {.again = 2 * 260 + 512 * 4},
                {.again = 512 * 4 + 512 * 2},
                {.written = 8192, .again = 2048 * 2}});
  expect_works(gather(formats(kF32, kInt8)),
               slice,
               {{.read = 1024, .again = 260},
                {.kind = kWire, .written = 8192},
                {.again = 2 * 260 + 512 * 4}});
  expect_works(gather(formats(kInt8, kF32)),
               slice,
               {{.kind = kWire, .read = 1024},
                {.again = 512 * 4 + 2 * 260},
                {.written = 8192, .again = 8 * 260}});
}

// Sums between levels are f32, whatever the operand is.
TEST(CollectiveWork, OfAReductionHasTheCodesOfEachLevel) {
  const auto reduce = [](const WireFormats& wire) {
    return make_op(ReduceSlicesAttrs{.axes = kAxes, .slice = 256, .wire = wire});
  };
  expect_works(reduce({kInt8}),
               "f32[embed=2048]",
               {{.read = 8192, .again = 8 * 260},
                {.kind = kWire},
                {.again = 8 * 260 + 512 * 4, .flop = 1536},
                {.again = 512 * 4 + 2 * 260},
                {.written = 1024, .again = 2 * 260, .flop = 256}});
  expect_works(reduce({kBF16}),
               "f32[embed=2048]",
               {{.read = 8192, .again = 2048 * 2},
                {.kind = kWire},
                {.again = 2048 * 2 + 512 * 4, .flop = 1536},
                {.again = 512 * 4 + 512 * 2},
                {.written = 1024, .again = 512 * 2, .flop = 256}});
  expect_works(reduce(formats(kF32, kInt8)),
               "f32[embed=2048]",
               {{.kind = kWire},
                {.kind = kFold, .read = 8192, .again = 512 * 4, .flop = 1536},
                {.again = 512 * 4 + 2 * 260},
                {.written = 1024, .again = 2 * 260, .flop = 256}});
  // What is in bf16 goes so without codes on all levels only.
  expect_works(reduce(formats(kBF16, kInt8)),
               "bf16[embed=2048]",
               {{.read = 4096, .again = 2048 * 2},
                {.kind = kWire},
                {.again = 2048 * 2 + 512 * 4, .flop = 1536},
                {.again = 512 * 4 + 2 * 260},
                {.written = 512, .again = 2 * 260, .flop = 256}});
  expect_works(reduce({kBF16}),
               "bf16[embed=2048]",
               {{.kind = kWire},
                {.kind = kFold, .read = 4096, .again = 512 * 2, .flop = 1536},
                {.kind = kFold, .written = 512, .again = 512 * 2, .flop = 256}});
}

// The slice of 256 elements that the first hop leaves is encoded for the second.
TEST(CollectiveWork, OfAnAllReduceHasTheCodesOfBothHops) {
  expect_works(make_op(AllReduceSlicesAttrs{.axes = kAxes, .wire = {kInt8}}),
               "f32[embed=2048]",
               {{.read = 8192, .again = 8 * 260},
                {.kind = kWire},
                {.again = 8 * 260 + 512 * 4, .flop = 1536},
                {.again = 512 * 4 + 2 * 260},
                {.again = 2 * 260 + 256 * 4, .flop = 256},
                {.again = 256 * 4 + 260},
                {.written = 8192, .again = 8 * 260}});
  expect_works(make_op(AllReduceSlicesAttrs{.axes = kAxes, .wire = formats(kF32, kInt8)}),
               "f32[embed=2048]",
               {{.kind = kWire, .written = 8192},
                {.kind = kFold, .read = 8192, .again = 512 * 4, .flop = 1536},
                {.again = 512 * 4 + 2 * 260},
                {.again = 2 * 260 + 256 * 4, .flop = 256},
                {.again = 256 * 4 + 260},
                {.again = 2 * 260 + 512 * 4}});
}

// Shards of four of 31 tokens, the last one with padding.
TEST(CollectiveWork, OfShardsOfShortRowsHasTheirCopies) {
  constexpr double kWhole = 32 * 31 * 8 * 4;
  constexpr double kShard = 32 * 4 * 8 * 4;
  expect_works(make_op(AllGatherAttrs{.axes = kAxes, .dim = 1, .bound = 31}),
               "f32[batch=32, seq=4, embed=8]",
               {{.kind = kWire, .read = kShard}, {.written = kWhole, .again = kWhole, .times = 8}});
  expect_works(make_op(ReduceScatterAttrs{.axes = kAxes, .dim = 1}),
               "f32[batch=32, seq=31, embed=8]",
               {{.again = 8 * kShard},
                {.read = kWhole, .again = kWhole, .times = 8},
                {.kind = kWire},
                {.kind = kFold, .again = 8 * kShard + 2 * kShard, .flop = kWhole / 4 * 3 / 4},
                {.kind = kFold, .written = kShard, .again = 2 * kShard, .flop = kWhole / 4 / 8}});
  // Few rows move one by one, from where they are to where they belong.
  expect_works(make_op(AllGatherAttrs{.axes = kAxes, .dim = 1, .bound = 32}),
               "f32[batch=2, seq=4, embed=8]",
               {{.kind = kWire, .read = 2 * 4 * 8 * 4, .written = 2 * 32 * 8 * 4}});
  expect_works(make_op(ReduceScatterAttrs{.axes = kAxes, .dim = 1}),
               "f32[batch=2, seq=32, embed=8]",
               {{.kind = kWire},
                {.kind = kFold, .read = 2048, .again = 512, .flop = 512 - 128, .times = 2},
                {.kind = kFold, .written = 256, .again = 512, .flop = 64, .times = 2}});
}

// Parts are dealt from memory where they lie side by side, and what arrives is put in its place.
TEST(CollectiveWork, OfAnAllToAllIsItsCopies) {
  const AllToAllAttrs attrs{.axes = kAxes, .from = 0, .to = 1, .bound = 48};
  expect_works(make_op(attrs),
               "f32[a=6, b=32, c=2]",
               {{.read = 1536, .again = 1536, .times = 8},
                {.kind = kWire},
                {.written = 1536, .again = 1536, .times = 8}});
  // Parts of four reach over the end of 30.
  expect_works(make_op(attrs),
               "f32[a=6, b=30, c=2]",
               {{.again = 1536},
                {.read = 1440, .again = 1440, .times = 8},
                {.kind = kWire},
                {.written = 1536, .again = 1536, .times = 8}});
}

}  // namespace
}  // namespace tessera::conformance
