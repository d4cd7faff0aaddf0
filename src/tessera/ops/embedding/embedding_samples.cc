#include <algorithm>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/embedding/embedding_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::ids;
using conformance::integers;
using conformance::normal;
using conformance::OpClass;
using conformance::reals;
using conformance::Sample;
using conformance::types;

namespace {

struct Case {
  std::string_view name;
  std::int32_t vocab;
  std::int64_t channels;
  std::string_view positions;  // more of them than entries: some ids repeat, some never occur
};

constexpr Case kCases[] = {{"one", 1, 1, "[seq=1]"},
                           {"odd", 7, 5, "[batch=3, seq=3]"},
                           {"even", 11, 6, "[batch=2, seq=8]"},
                           {"large", 50, 67, "[batch=2, seq=70]"},
                           {"frequent", 3, 264, "[batch=2, seq=700]"},
                           {"rare", 900, 9, "[seq=1100]"}};

}  // namespace

SampleList samples(SamplesOf<EmbeddingAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      const std::string table = format("?[vocab={}, embed={}]", c.vocab, c.channels);
      list.push_back({.name = format("{}_{}", c.name, name(dtype)),
                      .op = make_op(EmbeddingAttrs{}),
                      .operands = types(dtype, {table, format("i32{}", c.positions)}),
                      .fills = {normal(), integers(c.vocab)},
                      .op_class = OpClass::kExact,
                      .parameters = {0}});
    }
  }
  return list;
}

SampleList samples(SamplesOf<EmbeddingBackwardAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      const std::string_view dims = c.positions.substr(0, c.positions.size() - 1);
      EmbeddingBackwardAttrs attrs{.vocab = c.vocab, .vocab_dim = "entries"};
      Sample sample{
          .name = format("{}_{}", c.name, name(dtype)),
          .op = make_op(attrs),
          .operands = types(
              dtype, {format("?{}, embed={}]", dims, c.channels), format("i32{}", c.positions)}),
          .fills = {normal(), integers(c.vocab)},
          .op_class = OpClass::kReduction,
          .differentiable = false};
      list.push_back(sample);
      attrs.accumulate = true;
      sample.name += "_accumulate";
      sample.op = make_op(attrs);
      sample.operands.push_back(
          types(dtype, {format("f32[entries={}, embed={}]", c.vocab, c.channels)})[0]);
      sample.addends = {2};
      list.push_back(std::move(sample));
    }
  }
  return list;
}

void reference(const EmbeddingAttrs& attrs, const Views& views) {
  const EmbeddingOperands of = by_name(attrs, views);
  const auto table = reals(of.table);
  const auto index = ids(of.ids);
  const auto y = reals(of.y);
  const std::size_t channels = conformance::bound(of.table, 1);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = table[static_cast<std::size_t>(index[i / channels]) * channels + i % channels];
  }
}

void reference(const EmbeddingBackwardAttrs& attrs, const Views& views) {
  const EmbeddingBackwardOperands of = by_name(attrs, views);
  const auto dy = reals(of.dy);
  const auto index = ids(of.ids);
  const auto dtable = reals(of.dtable);
  const std::size_t channels = conformance::bound(of.dtable, 1);
  std::ranges::fill(dtable, 0.0);
  if (attrs.accumulate) {
    std::ranges::copy(reals(of.accumulator), dtable.begin());
  }
  for (std::size_t i = 0; i < dy.size(); ++i) {
    dtable[static_cast<std::size_t>(index[i / channels]) * channels + i % channels] += dy[i];
  }
}

}  // namespace tessera
