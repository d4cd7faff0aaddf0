// Ops that move or know parts of tensors, on several ranks: gathers and reductions along a dim
// whose bound need not divide, over one level and two; what they say that they move; errors of ops
// whose vocabulary is cut.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/comm/axis_communicators.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/tensor_part.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/testing/execute.h"

namespace tessera {
namespace {

using conformance::execute;
using conformance::HostTensor;
using conformance::rounded;

// Tensor ranks on levels of these sizes.
Mesh tensor_mesh(const std::vector<std::int64_t>& sizes) {
  Mesh mesh;
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    mesh.axes.push_back({.name = format("tensor.{}", i),
                         .group = AxisGroup::kTensor,
                         .size = sizes[i],
                         .stride = stride,
                         .level = format("{}", i)});
    stride *= sizes[i];
  }
  return mesh;
}

AxisSizes axes_of(const Mesh& mesh) {
  AxisSizes axes;
  for (const MeshAxis& axis : mesh.axes) {
    axes.push_back({.name = axis.name, .size = axis.size});
  }
  return axes;
}

// The only result of `op` on every rank, which reads operand(rank).
std::vector<HostTensor> run(const Mesh& mesh,
                            const OpRef& op,
                            const std::function<HostTensor(std::int64_t)>& operand) {
  LocalWorld world(mesh.num_ranks());
  std::vector<HostTensor> results(static_cast<std::size_t>(mesh.num_ranks()),
                                  HostTensor(TensorType{}));
  {
    std::vector<std::jthread> threads;
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<World> self = world.join(rank);
        const AxisCommunicators communicators(*self, mesh);
        const HostTensor own = operand(rank);
        auto outcome = execute(
            *op,
            std::span(&own, 1),
            {.communicator_of = [&](std::string_view axis, TrafficClass which) -> Communicator& {
              return communicators.along(axis, which);
            }});
        EXPECT_TRUE(outcome.failures.empty());
        results[static_cast<std::size_t>(rank)] = std::move(outcome.results[0]);
      });
    }
  }
  return results;
}

// Whole numbers, so that sums are exact in any order: element i of rank r's tensor.
HostTensor numbers(const TensorType& type, std::int64_t rank) {
  HostTensor tensor(TensorType{.dtype = DType::kF64, .dims = type.dims});
  for (std::size_t i = 0; i < tensor.f64().size(); ++i) {
    tensor.f64()[i] = static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 5) % 32);
  }
  return rounded(tensor, type.dtype);
}

struct Case {
  std::vector<std::int64_t> levels;
  std::string_view type;
  std::int64_t dim;
};

class TensorCollectives : public testing::TestWithParam<Case> {
 protected:
  TensorCollectives()
      : mesh_(tensor_mesh(GetParam().levels)),
        whole_(parse_tensor_type(GetParam().type)),
        layout_(layout_cut_at(GetParam().dim)) {}

  Layout layout_cut_at(std::int64_t dim) const {
    Layout layout = whole_layout(whole_);
    const auto cut = static_cast<std::size_t>(dim);
    const AxisSizes axes = axes_of(mesh_);
    layout.dims[cut] = {.axes = axes, .padding = padding_of(whole_.dims[cut].bound, axes)};
    return layout;
  }

  // The rank's part of `whole`, with zeros where it is padding.
  HostTensor part(const HostTensor& whole, std::int64_t rank) const {
    return part(whole, rank, layout_);
  }

  HostTensor part(const HostTensor& whole, std::int64_t rank, const Layout& layout) const {
    const TensorPart own(whole_, layout, coordinates_of(mesh_, rank));
    HostTensor result(own.local());
    const std::size_t element = size_bytes(whole_.dtype);
    own.box().for_each_stretch(
        0, own.num_elements(), [&](std::int64_t from, std::int64_t to, std::int64_t count) {
          std::copy_n(whole.bytes().begin() + from * static_cast<std::int64_t>(element),
                      count * static_cast<std::int64_t>(element),
                      result.bytes().begin() + to * static_cast<std::int64_t>(element));
        });
    return result;
  }

  AxisSizes axes() const { return axes_of(mesh_); }

  Mesh mesh_;
  TensorType whole_;
  Layout layout_;
};

INSTANTIATE_TEST_SUITE_P(Cases,
                         TensorCollectives,
                         testing::Values(Case{{2}, "f32[batch=3, seq=5, embed=2]", 1},
                                         Case{{4}, "f32[batch=2, seq=5]", 1},
                                         Case{{3}, "bf16[seq=6, embed=2]", 0},
                                         Case{{2, 2}, "f32[batch=3, seq=9, embed=2]", 1},
                                         Case{{2, 3}, "bf16[batch=2, seq=4, embed=3]", 2},
                                         // So many rows that they move together.
                                         Case{{2}, "f32[batch=3, seq=6, heads=4, head_dim=2]", 2},
                                         Case{{4}, "bf16[seq=40, embed=7]", 1},
                                         Case{{2, 3}, "f32[batch=4, seq=9, heads=5]", 2},
                                         Case{{3}, "f32[seq=17, embed=2]", 1}));

TEST_P(TensorCollectives, AllGatherJoinsShardsAndLeavesPaddingOut) {
  const HostTensor whole = numbers(whole_, 0);
  const std::int64_t bound = whole_.dims[static_cast<std::size_t>(GetParam().dim)].bound;
  const auto results =
      run(mesh_,
          make_op(AllGatherAttrs{.axes = axes(), .dim = GetParam().dim, .bound = bound}),
          [&](std::int64_t rank) { return part(whole, rank); });
  for (const HostTensor& result : results) {
    EXPECT_EQ(result.bytes().size(), whole.bytes().size());
    EXPECT_TRUE(std::ranges::equal(result.bytes(), whole.bytes()));
  }
}

TEST_P(TensorCollectives, ReduceScatterSumsAndPads) {
  HostTensor sum(TensorType{.dtype = DType::kF64, .dims = whole_.dims});
  for (std::int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
    const HostTensor term = widened(numbers(whole_, rank));
    std::ranges::transform(term.f64(), sum.f64(), sum.f64().begin(), std::plus<>());
  }
  const auto results = run(mesh_,
                           make_op(ReduceScatterAttrs{.axes = axes(), .dim = GetParam().dim}),
                           [&](std::int64_t rank) { return numbers(whole_, rank); });
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const HostTensor expected = part(rounded(sum, whole_.dtype), static_cast<std::int64_t>(rank));
    EXPECT_TRUE(std::ranges::equal(results[rank].bytes(), expected.bytes())) << "rank " << rank;
  }
}

TEST_P(TensorCollectives, LocalSliceIsTheRanksPart) {
  const HostTensor whole = numbers(whole_, 0);
  const auto results = run(mesh_,
                           make_op(LocalSliceAttrs{.axes = axes(), .dim = GetParam().dim}),
                           [&](std::int64_t) { return HostTensor(whole); });
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const HostTensor expected = part(whole, static_cast<std::int64_t>(rank));
    EXPECT_TRUE(std::ranges::equal(results[rank].bytes(), expected.bytes())) << "rank " << rank;
  }
}

// Shifts along each axis in turn bring what a slice so many places back has.
TEST_P(TensorCollectives, RingShiftsBringPartsOfThoseBefore) {
  const HostTensor whole = numbers(whole_, 0);
  const OpRef cut = make_op(LocalSliceAttrs{.axes = axes(), .dim = GetParam().dim});
  auto parts = run(mesh_, cut, [&](std::int64_t) { return HostTensor(whole); });
  AxisSizes back;
  for (const AxisSize& axis : axes()) {
    if (axis.size == 1) {
      continue;
    }
    parts = run(mesh_, make_op(RingShiftAttrs{.axes = {axis}}), [&](std::int64_t rank) {
      return HostTensor(parts[static_cast<std::size_t>(rank)]);
    });
    back.push_back({.name = axis.name, .size = 1});
    const auto expected =
        run(mesh_,
            make_op(LocalSliceAttrs{.axes = axes(), .dim = GetParam().dim, .back = back}),
            [&](std::int64_t) { return HostTensor(whole); });
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      EXPECT_TRUE(std::ranges::equal(parts[rank].bytes(), expected[rank].bytes()))
          << "rank " << rank << ", " << to_string(back);
    }
  }
}

TEST_P(TensorCollectives, AllToAllMovesTheCutToAnotherDim) {
  const HostTensor whole = numbers(whole_, 0);
  const std::int64_t from = GetParam().dim;
  for (std::int64_t to = 0; to < static_cast<std::int64_t>(whole_.num_dims()); ++to) {
    if (to == from) {
      continue;
    }
    const auto results =
        run(mesh_,
            make_op(AllToAllAttrs{.axes = axes(),
                                  .from = from,
                                  .to = to,
                                  .bound = whole_.dims[static_cast<std::size_t>(from)].bound}),
            [&](std::int64_t rank) { return part(whole, rank); });
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      const HostTensor expected = part(whole, static_cast<std::int64_t>(rank), layout_cut_at(to));
      EXPECT_TRUE(std::ranges::equal(results[rank].bytes(), expected.bytes()))
          << "to dim " << to << ", rank " << rank;
    }
  }
}

CollectiveUse only_use(const OpRef& op, std::initializer_list<std::string_view> texts) {
  TensorTypes types;
  for (const std::string_view text : texts) {
    types.push_back(parse_tensor_type(text));
  }
  const Collectives uses = collectives(*op, types);
  EXPECT_EQ(uses.size(), 1U);
  return uses.empty() ? CollectiveUse{} : uses[0];
}

const AxisSizes kTwoLevels = {{.name = "a", .size = 2}, {.name = "b", .size = 3}};

TEST(Collectives, SayWhatTheyMove) {
  EXPECT_EQ(only_use(make_op(AllReduceAttrs{.axes = kTwoLevels, .max = true}), {"f32[embed=6]"}),
            (CollectiveUse{.axes = kTwoLevels,
                           .kind = CollectiveKind::kAllReduce,
                           .dtype = DType::kF32,
                           .fold = PartialOp::kMax,
                           .bytes = 24,
                           .sent = all_reduce_traffic(kTwoLevels, TrafficClass::kTensor, 6, 4)}));
  EXPECT_EQ(only_use(make_op(GatherSlicesAttrs{.axes = kTwoLevels,
                                               .type = parse_tensor_type("bf16[embed=40]")}),
                     {"bf16[slice=8]"}),
            (CollectiveUse{.axes = kTwoLevels,
                           .kind = CollectiveKind::kAllGather,
                           .dtype = DType::kBF16,
                           .fold = std::nullopt,
                           .bytes = 96,
                           .sent = slices_traffic(kTwoLevels, TrafficClass::kState, 16)}));
  EXPECT_EQ(only_use(make_op(ReduceScatterAttrs{.axes = kTwoLevels, .dim = 1}),
                     {"f32[batch=4, seq=10, embed=2]"}),
            (CollectiveUse{.axes = kTwoLevels,
                           .kind = CollectiveKind::kReduceScatter,
                           .dtype = DType::kF32,
                           .fold = PartialOp::kSum,
                           .bytes = 96,  // 12 positions of 8 bytes
                           .count = 4,
                           .sent = slices_traffic(kTwoLevels, TrafficClass::kTensor, 16)}));
  // Of more than 16 rows that are short, all in one; of 16, and of long ones, each by itself.
  const auto gathered = [](const std::string& type) {
    return only_use(make_op(AllGatherAttrs{.axes = kTwoLevels, .dim = 1, .bound = 12}), {type});
  };
  EXPECT_EQ(gathered("f32[seq=17, heads=2, head_dim=5]"),
            (CollectiveUse{.axes = kTwoLevels,
                           .kind = CollectiveKind::kAllGather,
                           .dtype = DType::kF32,
                           .fold = std::nullopt,
                           .bytes = 4080,  // 17 rows of 12 heads of 20 bytes
                           .sent = slices_traffic(kTwoLevels, TrafficClass::kTensor, 680)}));
  EXPECT_EQ(gathered("f32[seq=16, heads=2, head_dim=5]").count, 16);
  EXPECT_EQ(gathered("f32[seq=17, heads=2, head_dim=8191]").count, 1);
  EXPECT_EQ(gathered("f32[seq=17, heads=2, head_dim=8192]").count, 17);
  Traffic dealt;  // of 6 parts of 2 x 2 positions of 8 bytes: a half, then two thirds
  dealt["a"].at(static_cast<std::size_t>(TrafficClass::kTensor)) = 96;
  dealt["b"].at(static_cast<std::size_t>(TrafficClass::kTensor)) = 128;
  EXPECT_EQ(only_use(make_op(AllToAllAttrs{.axes = kTwoLevels, .from = 0, .to = 1, .bound = 11}),
                     {"f32[batch=2, seq=10, embed=2]"}),
            (CollectiveUse{.axes = kTwoLevels,
                           .kind = CollectiveKind::kAllToAll,
                           .dtype = DType::kF32,
                           .fold = std::nullopt,
                           .bytes = 192,
                           .sent = dealt}));
  Traffic shifted;
  shifted["b"].at(static_cast<std::size_t>(TrafficClass::kTensor)) = 160;
  EXPECT_EQ(
      only_use(make_op(RingShiftAttrs{.axes = {kTwoLevels[1]}}), {"f32[batch=2, seq=10, embed=2]"}),
      (CollectiveUse{.axes = {kTwoLevels[1]},
                     .kind = CollectiveKind::kRingShift,
                     .dtype = DType::kF32,
                     .fold = std::nullopt,
                     .bytes = 160,
                     .sent = shifted}));
  EXPECT_TRUE(collectives(*make_op(AddAttrs{}), {}).empty());
}

TEST(Collectives, CrossEntropyMovesTwoFloatsARow) {
  const OpRef op = make_op(CrossEntropyAttrs{.chunk = 4, .axes = kTwoLevels, .whole_vocab = 10});
  const TensorTypes types = {parse_tensor_type("bf16[seq=6, embed=2]"),
                             parse_tensor_type("bf16[vocab=2, embed=2]"),
                             parse_tensor_type("i32[seq=6]"),
                             parse_tensor_type("f32[]")};
  std::vector<std::int64_t> bytes;
  for (const CollectiveUse& use : collectives(*op, types)) {
    EXPECT_EQ(use.axes, kTwoLevels);
    EXPECT_EQ(use.dtype, DType::kF32);
    bytes.push_back(use.bytes);
  }
  EXPECT_EQ(bytes, (std::vector<std::int64_t>{16, 16, 8, 8}));
  EXPECT_TRUE(collectives(*make_op(CrossEntropyAttrs{}), types).empty());
}

TEST(Collectives, SendLessOnOuterLevels) {
  const auto tensor = static_cast<std::size_t>(TrafficClass::kTensor);
  Traffic expected;
  expected[kTwoLevels[0].name][tensor] = 300;
  expected[kTwoLevels[1].name][tensor] = 200;
  EXPECT_EQ(slices_traffic(kTwoLevels, TrafficClass::kTensor, 100), expected);
  // 90 floats in six parts of a cache line each.
  expected[kTwoLevels[0].name][tensor] = 384;
  expected[kTwoLevels[1].name][tensor] = 256;
  EXPECT_EQ(all_reduce_traffic(kTwoLevels, TrafficClass::kTensor, 90, 4), expected);
}

HostTensor ids(std::vector<std::int32_t> values) {
  HostTensor tensor(
      TensorType{.dtype = DType::kI32,
                 .dims = {{.name = "seq", .bound = static_cast<std::int64_t>(values.size())}}});
  std::ranges::copy(values, tensor.i32().begin());
  return tensor;
}

// A table of six rows of a vocabulary of five: the last row is padding, not an entry.
TEST(CutVocabulary, IdsAndLabelsAreCheckedAgainstTheWhole) {
  const HostTensor table(parse_tensor_type("f32[vocab=6, embed=2]"));
  const HostTensor x(parse_tensor_type("f32[seq=2, embed=2]"));
  const HostTensor seed(parse_tensor_type("f32[]"));
  const auto error = [](const OpRef& op, const std::vector<HostTensor>& operands) {
    return error_of(ErrorCode::kInvalidData, [&] { execute(*op, operands, {}); });
  };
  const OpRef lookup =
      make_op(EmbeddingAttrs{.axes = {{.name = "tensor", .size = 1}}, .whole_vocab = 5});
  EXPECT_EQ(error(lookup, {table, ids({4, 5})}), "embedding: id 5 at index 1 is outside [0, 5)");
  const OpRef gradient = make_op(EmbeddingBackwardAttrs{
      .vocab = 6, .axes = {{.name = "tensor", .size = 1}}, .whole_vocab = 5});
  EXPECT_EQ(error(gradient, {x, ids({-1, 0})}), "embedding: id -1 at index 0 is outside [0, 5)");
  const OpRef loss =
      make_op(CrossEntropyAttrs{.axes = {{.name = "tensor", .size = 1}}, .whole_vocab = 5});
  EXPECT_EQ(error(loss, {x, table, ids({-1, 5}), seed}),
            "label 5 at row 1, expected less than the vocabulary of 5");
}

}  // namespace
}  // namespace tessera
