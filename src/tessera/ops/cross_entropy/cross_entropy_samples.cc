#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::constant;
using conformance::Fill;
using conformance::labels;
using conformance::normal;
using conformance::OpClass;
using conformance::reals;
using conformance::Sample;

namespace {

struct Case {
  std::string_view name;
  std::string_view positions;
  std::int32_t vocab;
  std::int32_t ignored_every;  // one label in so many; 1: all
  std::int64_t channels;
  std::int64_t chunk;
  std::int32_t padding = 0;  // rows of the head behind the vocabulary
};

// Chunks that hold all rows, that divide them, and that do not; rows that are all ignored.
constexpr Case kCases[] = {{"one", "seq=1", 1, 100000, 1, 256},
                           {"odd", "seq=5", 7, 4, 3, 256},
                           {"even", "batch=2, seq=8", 34, 4, 18, 4},
                           {"ragged_chunk", "batch=3, seq=7", 19, 4, 5, 8},
                           {"row_chunk", "seq=6", 11, 4, 9, 1},
                           {"large", "batch=2, seq=40", 259, 4, 66, 32},
                           {"all_ignored", "batch=2, seq=4", 6, 1, 4, 3},
                           {"padded", "batch=2, seq=8", 33, 4, 18, 5, 3},
                           {"wide", "seq=3", 2072, 4, 16, 2},
                           {"wide_padded", "seq=5", 2061, 4, 16, 4, 3}};

constexpr double kSeed = 0.625;  // exact in bf16

// Which results: the loss alone (forward), the gradients alone (backward), both (fused), both with
// the head's gradient accumulated, and without the head's gradient.
struct Form {
  std::string_view name;
  bool loss;
  bool gradients;
  bool accumulate;
  bool head_gradient = true;
};

constexpr Form kForms[] = {{"loss", true, false, false},
                           {"gradients", false, true, false},
                           {"both", true, true, false},
                           {"accumulate", true, true, true},
                           {"frozen_head", true, true, false, false},
                           {"frozen_head_gradient", false, true, false, false}};

Sample make_sample(const Case& c, const Form& form, DType dtype) {
  Sample sample{.name = format("{}_{}_{}", c.name, form.name, name(dtype)),
                .op = make_op(CrossEntropyAttrs{.loss = form.loss,
                                                .gradients = form.gradients,
                                                .head_gradient = form.head_gradient,
                                                .accumulate = form.accumulate,
                                                .chunk = c.chunk,
                                                .vocab = c.padding > 0 ? c.vocab : 0}),
                .operands = conformance::types(
                    dtype,
                    {format("?[{}, embed={}]", c.positions, c.channels),
                     format("?[vocab={}, embed={}]", c.vocab + c.padding, c.channels),
                     format("i32[{}]", c.positions),
                     "f32[]"}),
                .fills = {normal(), normal(0.5), labels(c.vocab, c.ignored_every), constant(kSeed)},
                .op_class = OpClass::kReduction,
                .differentiable = !form.gradients,
                .without_gradient = {3},
                .parameters = {1},
                .arriving_gradient = kSeed};
  if (form.accumulate) {
    sample.operands.push_back(with_dtype(sample.operands[1], DType::kF32));
    sample.addends = {4};
  }
  if (form.gradients && dtype == DType::kBF16) {  // dlogits are rounded between
    if (form.loss) {
      sample.result_classes = {OpClass::kReduction};
    }
    sample.result_classes.insert(
        sample.result_classes.end(), form.head_gradient ? 2 : 1, OpClass::kRounded);
  }
  return sample;
}

double log_sum_exp(const std::vector<double>& logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) {
    sum += std::exp(logit - largest);
  }
  return largest + std::log(sum);
}

}  // namespace

SampleList samples(SamplesOf<CrossEntropyAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      for (const Form& form : kForms) {
        list.push_back(make_sample(c, form, dtype));
      }
    }
  }
  return list;
}

namespace {

// Elements of the head's rows that count.
std::size_t entries(const CrossEntropyAttrs& attrs, const View& head) {
  const std::size_t rows =
      attrs.vocab > 0 ? static_cast<std::size_t>(attrs.vocab) : conformance::bound(head, 0);
  return rows * conformance::bound(head, 1);
}

// Adds one row's part of dx and dhead.
struct RowGradient {
  std::span<const double> x;
  std::span<double> dx;
  std::span<const double> head;
  std::span<double> dhead;

  void add(std::span<const double> dlogits) const {
    for (std::size_t i = 0; i < head.size(); ++i) {
      const std::size_t v = i / x.size();
      const std::size_t c = i % x.size();
      dx[c] += dlogits[v] * head[i];
      dhead[i] += dlogits[v] * x[c];
    }
  }
};

}  // namespace

void reference(const CrossEntropyAttrs& attrs, const Views& views) {
  const auto x = reals(views.in[0]);
  const auto head = reals(views.in[1]).first(entries(attrs, views.in[1]));
  const auto label = conformance::ids(views.in[2]);
  const double seed = reals(views.in[3])[0];
  const std::size_t channels = conformance::bound(views.in[1], 1);
  const std::size_t vocab = head.size() / channels;
  double loss = 0;
  std::vector<double> dx(x.size());
  std::vector<double> dhead(reals(views.in[1]).size());
  if (attrs.accumulate) {
    std::ranges::copy(reals(views.in[4]), dhead.begin());
  }
  for (std::size_t r = 0; r < label.size(); ++r) {
    if (label[r] < 0) {
      continue;
    }
    const std::size_t at = r * channels;
    const auto target = static_cast<std::size_t>(label[r]);
    std::vector<double> logits(vocab);
    for (std::size_t i = 0; i < head.size(); ++i) {
      logits[i / channels] += x[at + i % channels] * head[i];
    }
    const double total = log_sum_exp(logits);
    loss += total - logits[target];
    for (std::size_t v = 0; v < vocab; ++v) {
      logits[v] = seed * (std::exp(logits[v] - total) - (v == target ? 1.0 : 0.0));
    }
    const RowGradient row{.x = x.subspan(at, channels),
                          .dx = std::span(dx).subspan(at, channels),
                          .head = head,
                          .dhead = std::span(dhead).first(head.size())};
    row.add(logits);
  }
  std::size_t result = 0;
  if (attrs.loss) {
    reals(views.out[result++])[0] = loss;
  }
  if (attrs.gradients) {
    std::ranges::copy(dx, reals(views.out[result]).begin());
  }
  if (attrs.makes_head_gradient()) {
    std::ranges::copy(dhead, reals(views.out[result + 1]).begin());
  }
}

}  // namespace tessera
