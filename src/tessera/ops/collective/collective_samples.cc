#include <cstdint>
#include <string_view>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/ops/collective/collective.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

// Along no axis, where a collective is a copy; tests/distributed has the rest.

namespace tessera {

using conformance::OpClass;
using conformance::reals;

SampleList samples(SamplesOf<AllReduceAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view x : {"?[embed=1]", "?[batch=3, seq=7]", "?[batch=4, embed=66]"}) {
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(AllReduceAttrs{}),
                      .operands = conformance::types(dtype, {x}),
                      .op_class = OpClass::kExact});
    }
    list.push_back({.name = format("max_{}", name(dtype)),
                    .op = make_op(AllReduceAttrs{.axes = {}, .max = true}),
                    .operands = conformance::types(dtype, {"?[batch=4, embed=66]"}),
                    .op_class = OpClass::kExact,
                    .differentiable = false});
  }
  return list;
}

SampleList samples(SamplesOf<AllReduceSlicesAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view x : {"?[embed=1]", "?[mlp=6, embed=10]"}) {
      for (const AllReduceSlicesAttrs& attrs :
           {AllReduceSlicesAttrs{},
            AllReduceSlicesAttrs{.axes = {}, .wire = {WireFormat::kInt8}, .block = 64}}) {
        list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                        .op = make_op(attrs),
                        .operands = conformance::types(dtype, {x}),
                        .op_class = OpClass::kExact});
      }
    }
  }
  return list;
}

SampleList samples(SamplesOf<GatherSlicesAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view dims : {"[mlp=6, embed=10]", "[mlp=16, embed=4]", "[slice=64]"}) {
      const TensorType type = parse_tensor_type(format("{}{}", name(dtype), dims));
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(GatherSlicesAttrs{.axes = {}, .type = type}),
                      .operands = conformance::types(dtype, {"?[slice=64]"}),
                      .op_class = OpClass::kExact});
    }
  }
  return list;
}

SampleList samples(SamplesOf<ReduceSlicesAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view x : {"?[mlp=6, embed=10]", "?[mlp=16, embed=4]", "?[slice=64]"}) {
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(ReduceSlicesAttrs{.axes = {}, .slice = 64}),
                      .operands = conformance::types(dtype, {x}),
                      .op_class = OpClass::kExact});
    }
  }
  return list;
}

namespace {

// Tensors with a dim to cut, and which: along no axis its only shard is the whole.
struct ShardCase {
  std::string_view dims;
  std::int64_t dim;
  std::int64_t bound;
};

constexpr ShardCase kShardCases[] = {
    {"[seq=1]", 0, 1}, {"[batch=4, seq=6, embed=10]", 1, 6}, {"[batch=2, embed=7]", 1, 7}};

template <class MakeAttrs>
SampleList shard_samples(const MakeAttrs& make_attrs) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ShardCase& c : kShardCases) {
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(make_attrs(c)),
                      .operands = conformance::types(dtype, {format("?{}", c.dims)}),
                      .op_class = OpClass::kExact});
    }
  }
  return list;
}

}  // namespace

SampleList samples(SamplesOf<AllGatherAttrs>) {
  return shard_samples([](const ShardCase& c) {
    return AllGatherAttrs{.axes = {}, .dim = c.dim, .bound = c.bound};
  });
}

SampleList samples(SamplesOf<ReduceScatterAttrs>) {
  return shard_samples(
      [](const ShardCase& c) { return ReduceScatterAttrs{.axes = {}, .dim = c.dim}; });
}

SampleList samples(SamplesOf<AllToAllAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view dims :
         {"[batch=4, seq=6, embed=10]", "[batch=4, seq=7, embed=1]"}) {
      for (const auto& [from, to] : {std::pair(0, 1), std::pair(2, 0)}) {
        const TensorTypes types = conformance::types(dtype, {format("?{}", dims)});
        list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                        .op = make_op(AllToAllAttrs{
                            .axes = {},
                            .from = from,
                            .to = to,
                            .bound = types[0].dims[static_cast<std::size_t>(from)].bound}),
                        .operands = types,
                        .op_class = OpClass::kExact});
      }
    }
  }
  return list;
}

SampleList samples(SamplesOf<RingShiftAttrs>) {
  SampleList list = shard_samples([](const ShardCase&) { return RingShiftAttrs{}; });
  for (conformance::Sample& sample : list) {
    sample.differentiable = false;
  }
  return list;
}

SampleList samples(SamplesOf<LocalSliceAttrs>) {
  return shard_samples(
      [](const ShardCase& c) { return LocalSliceAttrs{.axes = {}, .dim = c.dim}; });
}

namespace {

// The first elements of x in memory order, then zeros.
void reference_copy(const Views& views) {
  const OneToOne of = one_to_one(views);
  const auto x = reals(of.x);
  const auto y = reals(of.y);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = i < x.size() ? x[i] : 0.0;
  }
}

}  // namespace

void reference(const AllReduceAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const AllReduceSlicesAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const GatherSlicesAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const AllGatherAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const ReduceScatterAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const AllToAllAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const RingShiftAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const LocalSliceAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const ReduceSlicesAttrs&, const Views& views) {
  reference_copy(views);
}

}  // namespace tessera
