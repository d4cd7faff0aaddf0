#include "tessera/mesh/tensor_part.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/mesh/random_mesh.h"

namespace tessera {
namespace {

const AxisSize kPair = {.name = "tensor.pair", .size = 2};
const AxisSize kNode = {.name = "tensor.node", .size = 2};

// The axes' coordinates as a function.
CoordinateOf at(std::map<std::string, std::int64_t, std::less<>> coordinates) {
  return [coordinates = std::move(coordinates)](std::string_view axis) {
    return coordinates.find(axis)->second;
  };
}

TEST(DimAxes, NamesWhatEachGroupCuts) {
  const Mesh mesh = make_mesh(test_cluster({2, 4, 3}), {.data = 6, .tensor = 4});
  const DimAxes dims = dim_axes(mesh, false);
  EXPECT_EQ(to_string(dims.at("batch").axes), "data.node=2 data.cluster=3");
  for (const char* dim : {"heads", "kv_heads", "mlp", "vocab"}) {
    EXPECT_EQ(to_string(dims.at(dim).axes), "tensor.pair=2 tensor.node=2") << dim;
  }
  EXPECT_FALSE(dims.contains("seq"));
  EXPECT_EQ(to_string(dim_axes(mesh, true).at("seq").weak), "tensor.pair=2 tensor.node=2");
  EXPECT_TRUE(dim_axes({}, true).empty());
  const TensorType ids = parse_tensor_type("i32[batch=12, seq=8]");
  EXPECT_EQ(to_string(layout_of(ids, dim_axes(mesh, true)), ids),
            "[batch: data.node=2 data.cluster=3, seq]");
}

// Context axes cut sequences wherever they are named; those of sequence parallelism cut their
// parts.
TEST(DimAxes, ContextCutsSequences) {
  const Mesh mesh = make_mesh(test_cluster({2, 2, 2}), {.data = 2, .tensor = 2, .context = 2});
  const DimCut seq = dim_axes(mesh, true).at("seq");
  EXPECT_EQ(to_string(seq.axes), "context=2");
  EXPECT_EQ(to_string(seq.weak), "tensor=2");
  EXPECT_FALSE(seq.pads);
  const TensorType ids = parse_tensor_type("i32[batch=12, seq=8]");
  EXPECT_EQ(to_string(layout_of(ids, dim_axes(mesh, true)), ids),
            "[batch: data=2, seq: context=2]");
}

// Along axes that cut the batch as well: of a value with both dims the first one is cut.
TEST(DimAxes, ExpertsAreCutAlongMarkedAxes) {
  const Mesh mesh = make_mesh(test_cluster({2, 4}), {.data = 8, .expert = 4});
  const DimAxes dims = dim_axes(mesh, false);
  EXPECT_EQ(to_string(dims.at("expert").axes), "data.pair=2 data.node.expert=2");
  EXPECT_EQ(to_string(dims.at("batch").axes), "data.pair=2 data.node.expert=2 data.node=2");
  const TensorType weight = parse_tensor_type("f32[expert=8, embed=5]");
  EXPECT_EQ(to_string(layout_of(weight, dims), weight),
            "[expert: data.pair=2 data.node.expert=2, embed]");
  const TensorType inside = parse_tensor_type("f32[batch=8, expert=8]");
  EXPECT_EQ(to_string(axes_of(inside, dims)), to_string(dims.at("batch").axes));
  EXPECT_FALSE(dim_axes(make_mesh(test_cluster({2}), {.data = 2}), false).contains("expert"));
  const TensorType odd = parse_tensor_type("f32[expert=6]");
  EXPECT_EQ(
      error_of(ErrorCode::kInvalidConfig, [&] { layout_of(odd, dims); }),
      "expert = 6 does not divide by the 4 ranks of data.pair=2 data.node.expert=2: 3 of them "
      "would do, and so would a multiple of 4");
}

TEST(DimAxes, PadsOrRefuses) {
  const DimAxes dims = dim_axes(make_mesh(test_cluster({2, 4}), {.tensor = 4}), true);
  const TensorType table = parse_tensor_type("f32[vocab=67, embed=5]");
  EXPECT_EQ(to_string(layout_of(table, dims), table),
            "[vocab: tensor.pair=2 tensor.node=2 pad 1, embed]");
  EXPECT_EQ(local_type(table, dims).dims[0].bound, 17);
  const TensorType wo = parse_tensor_type("f32[embed=5, heads=6, head_dim=2]");
  EXPECT_EQ(error_of(ErrorCode::kInvalidConfig, [&] { layout_of(wo, dims); }),
            "heads = 6 does not divide by the 4 ranks of tensor.pair=2 tensor.node=2: 3 of them "
            "would do, and so would a multiple of 4");
}

// Every element of the part, as its index in the whole; -1 where it is padding.
std::vector<std::int64_t> elements(const TensorPart& part, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count), -1);
  part.box().for_each_stretch(
      first, count, [&](std::int64_t whole, std::int64_t local, std::int64_t length) {
        EXPECT_GT(length, 0);
        EXPECT_GE(local, first);
        const auto begin = indices.begin() + (local - first);
        std::iota(begin, begin + length, whole);
      });
  return indices;
}

TEST(TensorPart, ListsStretchesAndLeavesPaddingOut) {
  // 3 x 3 elements in parts of 2 x 2: the whole is 0 1 2 / 3 4 5 / 6 7 8.
  const TensorType whole = parse_tensor_type("f32[a=3, b=3]");
  const Layout layout = parse_layout("[a: tensor.pair=2 pad 1, b: tensor.node=2 pad 1]", whole);
  const auto part = [&](std::int64_t a, std::int64_t b) {
    const TensorPart own(whole, layout, at({{"tensor.pair", a}, {"tensor.node", b}}));
    EXPECT_EQ(own.num_elements(), 4);
    return elements(own, 0, 4);
  };
  EXPECT_EQ(part(0, 0), (std::vector<std::int64_t>{0, 1, 3, 4}));
  EXPECT_EQ(part(0, 1), (std::vector<std::int64_t>{2, -1, 5, -1}));
  EXPECT_EQ(part(1, 0), (std::vector<std::int64_t>{6, 7, -1, -1}));
  EXPECT_EQ(part(1, 1), (std::vector<std::int64_t>{8, -1, -1, -1}));
}

TEST(TensorPart, TheFirstAxisIsMajorAndTheLastPartMayBeEmpty) {
  const TensorType whole = parse_tensor_type("f32[a=5, b=2]");
  const Layout layout = parse_layout("[a: tensor.pair=2 tensor.node=2 pad 3, b]", whole);
  const auto part = [&](std::int64_t pair, std::int64_t node) {
    const TensorPart own(whole, layout, at({{"tensor.pair", pair}, {"tensor.node", node}}));
    return elements(own, 0, own.num_elements());
  };
  EXPECT_EQ(part(0, 1), (std::vector<std::int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(part(1, 0), (std::vector<std::int64_t>{8, 9, -1, -1}));
  EXPECT_EQ(part(1, 1), (std::vector<std::int64_t>{-1, -1, -1, -1}));
  EXPECT_EQ(place_along({kPair, kNode}, at({{"tensor.pair", 1}, {"tensor.node", 0}})), 2);
}

// The parts of the ranks of a mesh hold each element once, whatever is asked at a time.
TEST(TensorPart, PartsTileTheWhole) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Mesh mesh = random_mesh(seed).mesh;
    AxisSizes first;
    AxisSizes rest;
    for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
      (i % 2 == 0 ? first : rest).push_back({mesh.axes[i].name, mesh.axes[i].size});
    }
    const DimAxes dims = {{"a", {.axes = first, .pads = true}},
                          {"c", {.axes = rest, .pads = true}}};
    const auto bound = [&](std::uint64_t factor) {
      return static_cast<std::int64_t>(1 + seed * factor % 11);
    };
    const TensorType whole{.dtype = DType::kF32,
                           .dims = {{"a", bound(7)}, {"b", bound(3)}, {"c", bound(5)}}};
    std::vector<std::int64_t> seen;
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      const std::vector<std::int64_t> coordinates = mesh.coordinates(rank);
      const TensorPart part(whole, dims, [&](std::string_view axis) {
        const auto found = std::ranges::find(mesh.axes, axis, &MeshAxis::name);
        return coordinates[static_cast<std::size_t>(found - mesh.axes.begin())];
      });
      std::vector<std::int64_t> all = elements(part, 0, part.num_elements());
      std::vector<std::int64_t> pieces;
      for (std::int64_t begin = 0; begin < part.num_elements(); begin += 3) {
        const std::int64_t count = std::min<std::int64_t>(3, part.num_elements() - begin);
        const std::vector<std::int64_t> piece = elements(part, begin, count);
        pieces.insert(pieces.end(), piece.begin(), piece.end());
      }
      EXPECT_EQ(pieces, all);
      std::erase(all, -1);
      seen.insert(seen.end(), all.begin(), all.end());
    }
    std::ranges::sort(seen);
    std::vector<std::int64_t> expected(static_cast<std::size_t>(whole.num_elements()));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(seen, expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tessera
