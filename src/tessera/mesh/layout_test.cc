#include "tessera/mesh/layout.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/mesh/random_mesh.h"

namespace tessera {
namespace {

// Axes: 0 tensor (2), 1 context (2), 2 data.node (2), 3 data.cluster (3).
Mesh test_mesh() {
  return make_mesh(test_cluster({2, 4, 3}), {.data = 6, .tensor = 2, .context = 2});
}

TensorType activation() {
  return parse_tensor_type("bf16[batch=12, seq=64, embed=10]");
}

std::string parse_error(std::string_view text) {
  return error_of(ErrorCode::kInvalidArgument,
                  [&] { parse_layout(text, activation(), test_mesh()); });
}

std::string verify_error(const Layout& layout) {
  return error_of(ErrorCode::kInvalidArgument, [&] { verify(layout, activation(), test_mesh()); });
}

TEST(LayoutText, SaysHowEachDimIsCut) {
  const Layout layout = {
      .dims = {{.axes = {3, 2}}, {.axes = {1}, .order = DimOrder::kZigzag, .padding = 4}, {}},
      .partial = {0}};
  const std::string text =
      "[batch: data.cluster data.node, seq: context zigzag pad 4, embed] partial sum(tensor)";
  EXPECT_EQ(to_string(layout, activation(), test_mesh()), text);
  EXPECT_EQ(parse_layout(text, activation(), test_mesh()), layout);
}

TEST(LayoutText, ReadsBack) {
  const Mesh mesh = test_mesh();
  for (const std::string_view text : {"[batch, seq, embed]",
                                      "[batch: data.node, seq: tensor context, embed]",
                                      "[batch, seq, embed: tensor pad 2]",
                                      "[batch, seq: context zigzag, embed: tensor]",
                                      "[batch, seq, embed] partial sum(data.node, data.cluster)",
                                      "[batch, seq, embed] partial max(tensor)"}) {
    EXPECT_EQ(to_string(parse_layout(text, activation(), mesh), activation(), mesh), text);
  }
  const TensorType scalar = parse_tensor_type("f32[]");
  EXPECT_EQ(to_string(parse_layout("[] partial sum(tensor)", scalar, mesh), scalar, mesh),
            "[] partial sum(tensor)");
  EXPECT_EQ(parse_layout("[]", scalar, mesh), Layout{});
}

TEST(LayoutText, RefusesWithThePlace) {
  EXPECT_EQ(parse_error("[batch, embed]"),
            "line 1, column 9: found 'embed]', expected 'seq' (layout \"[batch, embed]\")");
  EXPECT_EQ(parse_error("[batch: data, seq, embed]"),
            "no axis \"data\"; the axes of the mesh are: tensor, context, data.node, data.cluster "
            "(layout \"[batch: data, seq, embed]\")");
  EXPECT_EQ(parse_error("[batch:, seq, embed]"),
            "line 1, column 8: found ', seq, embed]', expected a name (layout \"[batch:, seq, "
            "embed]\")");
  EXPECT_EQ(parse_error("[batch, seq: context zigzag tensor, embed]"),
            "line 1, column 29: found 'tensor, embed]', expected ',' (layout \"[batch, seq: "
            "context zigzag tensor, embed]\")");
  EXPECT_EQ(parse_error("[batch, seq, embed] partial mean(tensor)"),
            "line 1, column 29: found 'mean(tensor)', expected 'sum' (layout \"[batch, seq, "
            "embed] partial mean(tensor)\")");
  EXPECT_EQ(parse_error("[batch, seq, embed] tensor"),
            "line 1, column 21: found 'tensor', expected the end (layout \"[batch, seq, embed] "
            "tensor\")");
  EXPECT_EQ(parse_error("[batch: tensor, seq: tensor, embed]"),
            "a layout names axis \"tensor\" twice; each axis cuts one dim, or is partial (layout "
            "\"[batch: tensor, seq: tensor, embed]\")");
}

TEST(VerifyLayout, RefusesWhatNoMeshHolds) {
  EXPECT_EQ(verify_error({.dims = {{}}}),
            "a layout of 1 dims for bf16[batch=12, seq=64, embed=10]");
  EXPECT_EQ(verify_error({.dims = {{.axes = {4}}, {}, {}}}),
            "a layout names axis 4 of a mesh of 4 axes");
  EXPECT_EQ(verify_error({.dims = {{.axes = {0}}, {}, {}}, .partial = {0}}),
            "a layout names axis \"tensor\" twice; each axis cuts one dim, or is partial");
  EXPECT_EQ(verify_error({.dims = {{.axes = {0}, .padding = -1}, {}, {}}}),
            "a layout pads dim batch by -1, expected at least 0");
  EXPECT_EQ(verify_error({.dims = {{}, {.padding = 3}, {}}}),
            "a layout orders or pads dim seq, which no axis cuts");
  EXPECT_EQ(verify_error({.dims = {{}, {.order = DimOrder::kZigzag}, {}}}),
            "a layout orders or pads dim seq, which no axis cuts");
  EXPECT_EQ(verify_error({.dims = {{}, {}, {}}, .partial = {2, 0}}),
            "the partial axes data.node, tensor are not in the order of the mesh: tensor, "
            "context, data.node, data.cluster");
  EXPECT_EQ(verify_error({.dims = {{}, {}, {}}, .partial_op = PartialOp::kMax}),
            "a layout that is partial over no axis names the op max");
}

TEST(LocalType, DividesEachBound) {
  const Mesh mesh = test_mesh();
  const auto local = [&](std::string_view type, std::string_view layout) {
    const TensorType global = parse_tensor_type(type);
    return to_string(local_type(global, parse_layout(layout, global, mesh), mesh));
  };
  EXPECT_EQ(local("bf16[batch=12, seq=64]", "[batch: data.cluster data.node, seq: tensor]"),
            "bf16[batch=2, seq=32]");
  EXPECT_EQ(local("f32[vocab=50257]", "[vocab: tensor context]"), "f32[vocab=12565]");
  EXPECT_EQ(local("f32[vocab=50257]", "[vocab: tensor context pad 3]"), "f32[vocab=12565]");
  EXPECT_EQ(local("f32[vocab=50257]", "[vocab: tensor context pad 47]"), "f32[vocab=12576]");
  EXPECT_EQ(local("f32[seq=64]", "[seq: context zigzag]"), "f32[seq=32]");
  EXPECT_EQ(local("f32[seq=65]", "[seq: context zigzag]"), "f32[seq=34]");
  EXPECT_EQ(local("f32[embed=10]", "[embed] partial sum(tensor)"), "f32[embed=10]");
  EXPECT_EQ(local("f32[tokens=64:%7]", "[tokens]"), "f32[tokens=64:%7]");
  EXPECT_EQ(
      error_of(ErrorCode::kUnsupported, [&] { local("f32[tokens=64:%7]", "[tokens: tensor]"); }),
      "f32[tokens=64:%7]: dim tokens has a run-time count and cannot be cut over tensor");
}

TEST(LocalRange, MajorAxisFirst) {
  const Mesh mesh = test_mesh();
  const DimLayout batch = {.axes = {3, 2}};  // data.cluster major, data.node minor
  EXPECT_EQ(shards(batch, mesh), 6);
  // Rank 4 is data.node 1, rank 8 data.cluster 1.
  EXPECT_EQ(local_range(12, batch, mesh, 0), (DimRange{0, 2}));
  EXPECT_EQ(local_range(12, batch, mesh, 4), (DimRange{2, 4}));
  EXPECT_EQ(local_range(12, batch, mesh, 8), (DimRange{4, 6}));
  EXPECT_EQ(local_range(12, batch, mesh, 23), (DimRange{10, 12}));
  EXPECT_EQ(local_range(12, {.axes = {2, 3}}, mesh, 4), (DimRange{6, 8}));
  EXPECT_EQ(local_range(12, {}, mesh, 23), (DimRange{0, 12}));
}

TEST(LocalRange, LeavesPaddingOut) {
  const Mesh mesh = test_mesh();
  const DimLayout vocab = {.axes = {1, 0}, .padding = 3};
  EXPECT_EQ(local_range(50257, vocab, mesh, 2), (DimRange{25130, 37695}));
  EXPECT_EQ(local_range(50257, vocab, mesh, 3), (DimRange{37695, 50257}));
  // Five elements over four shards of two: the last holds padding only.
  EXPECT_EQ(local_range(5, {.axes = {1, 0}}, mesh, 2), (DimRange{4, 5}));
  EXPECT_EQ(local_range(5, {.axes = {1, 0}}, mesh, 3), (DimRange{5, 5}));
  EXPECT_EQ(error_of(ErrorCode::kUnsupported,
                     [&] { local_range(64, {.axes = {1}, .order = DimOrder::kZigzag}, mesh, 3); }),
            "the elements of a zigzag dim on rank 3 are no one range");
  constexpr ErrorCode kCode = ErrorCode::kInvalidArgument;
  EXPECT_EQ(error_of(kCode, [&] { local_range(5, {.axes = {4}}, mesh, 0); }),
            "a layout names axis 4 of a mesh of 4 axes");
  EXPECT_EQ(error_of(kCode, [&] { local_range(5, {.axes = {0}}, mesh, 24); }),
            "rank 24 of a mesh of 24 ranks");
}

// The ranges of the ranks of one group tile the dim without overlap, and none is longer than the
// local bound.
TEST(RandomLayouts, RangesPartitionTheDim) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Mesh mesh = random_mesh(seed).mesh;
    std::vector<std::size_t> all(mesh.axes.size());
    std::iota(all.begin(), all.end(), 0U);
    // Outermost axis major, so that ranks come in the order of their ranges.
    const DimLayout dim = {.axes = {all.rbegin(), all.rend()}};
    const auto bound = static_cast<std::int64_t>(1 + seed * 7 % 300);
    const TensorType type{.dtype = DType::kF32, .dims = {{"x", bound}}};
    const Layout layout = {.dims = {dim}};
    const std::int64_t local = local_type(type, layout, mesh).dims[0].bound;
    std::int64_t end = 0;
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      const DimRange range = local_range(bound, dim, mesh, rank);
      EXPECT_EQ(range.begin, end);
      EXPECT_LE(range.size(), local);
      end = range.end;
    }
    EXPECT_EQ(end, bound);
    EXPECT_GE(local * shards(dim, mesh), bound);
    EXPECT_EQ(parse_layout(to_string(layout, type, mesh), type, mesh), layout);
  }
}

}  // namespace
}  // namespace tessera
