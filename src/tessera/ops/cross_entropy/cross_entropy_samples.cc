#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/base/half.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/cross_entropy/cross_entropy_operands.h"
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
  double softcap = 0.0;
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
                           {"wide_padded", "seq=5", 2061, 4, 16, 4, 3},
                           {"softcap", "batch=2, seq=8", 34, 4, 18, 5, 0, 2.5},
                           {"softcap_padded", "seq=5", 2061, 4, 16, 4, 3, 2.5}};

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

Sample make_sample(const Case& c, const Form& form, DType dtype, DType logits = DType::kF32) {
  Sample sample{.name = format("{}_{}_{}", c.name, form.name, name(dtype)),
                .op = make_op(CrossEntropyAttrs{.loss = form.loss,
                                                .gradients = form.gradients,
                                                .head_gradient = form.head_gradient,
                                                .accumulate = form.accumulate,
                                                .chunk = c.chunk,
                                                .vocab = c.padding > 0 ? c.vocab : 0,
                                                .logits = logits,
                                                .softcap = c.softcap}),
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
  if (form.gradients) {
    if (form.loss) {
      sample.result_classes = {OpClass::kReduction};
    }
    sample.result_classes.insert(
        sample.result_classes.end(),
        form.head_gradient ? 2 : 1,
        // In bf16 dlogits are rounded between.
        dtype == DType::kBF16 ? OpClass::kRoundedTerms : OpClass::kUnequalTerms);
  }
  if (logits == DType::kBF16) {
    sample.name += "_logits_bf16";
    // A logit next to a step may be rounded the other way.
    sample.result_classes.assign(form.loss ? 1 : 0, OpClass::kRounded);
    const int num_gradients = form.gradients ? (form.head_gradient ? 2 : 1) : 0;
    sample.result_classes.resize(
        sample.result_classes.size() + static_cast<std::size_t>(num_gradients),
        OpClass::kRoundedTerms);
  }
  if (form.gradients && form.head_gradient && dtype == DType::kBF16) {
    sample.result_classes.back() = OpClass::kRoundedRows;
  }
  return sample;
}

// Of codes: one scale for a tensor, or one for each row and column.
struct Scales {
  std::string_view name;
  bool by_row;
};

constexpr Scales kScales[] = {{"tensorwise", false}, {"rowwise", true}};

// As tensor cores take codes, too.
constexpr Case kCodesCases[] = {{"odd", "seq=5", 7, 4, 3, 256},
                                {"ragged_chunk", "batch=3, seq=7", 19, 4, 5, 8},
                                {"large", "batch=2, seq=40", 259, 4, 66, 32},
                                {"all_ignored", "batch=2, seq=4", 6, 1, 4, 3},
                                {"padded", "batch=2, seq=8", 33, 4, 18, 5, 3},
                                {"groups", "batch=2, seq=32", 96, 4, 48, 32},
                                {"groups_ragged", "batch=3, seq=32", 80, 4, 32, 64},
                                {"softcap", "batch=2, seq=32", 96, 4, 48, 32, 0, 2.5}};

Sample codes_sample(
    const Case& c, const Form& form, const Scales& scales, DType dtype, DType logits) {
  Sample sample = make_sample(c, form, dtype, logits);
  sample.name = format("codes_{}_{}", scales.name, sample.name);
  sample.differentiable = false;
  CrossEntropyAttrs attrs = *sample.op->get_if<CrossEntropyAttrs>();
  attrs.codes = true;
  attrs.dtype = form.gradients ? dtype : DType::kF32;
  attrs.power_of_two = scales.by_row;
  sample.op = make_op(attrs);
  sample.addends.clear();
  sample.operands.resize(4);
  const auto add = [&](std::string_view type, const conformance::Fill& fill) {
    sample.operands.push_back(conformance::types(DType::kF8E4M3, {type})[0]);
    sample.fills.push_back(fill);
  };
  const auto add_scales = [&](std::string_view dims) {
    add(scales.by_row ? format("f32[{}]", dims) : "f32[]", conformance::uniform_between(0.5, 1.5));
  };
  const std::string vocab = format("vocab={}", c.vocab + c.padding);
  const std::string channels = format("embed={}", c.channels);
  sample.operands[0].dtype = sample.operands[1].dtype = DType::kF8E4M3;
  add_scales(c.positions);
  add_scales(vocab);
  if (form.gradients) {
    add(format("?[{}, {}]", channels, vocab), normal(0.5));
    add_scales(channels);
  }
  if (attrs.makes_head_gradient()) {
    add(format("?[{}, {}]", channels, c.positions), normal());
    add_scales(channels);
  }
  if (form.accumulate) {
    sample.addends = {static_cast<std::int32_t>(sample.operands.size())};
    add(format("f32[{}, {}]", vocab, channels), normal());
  }
  // A code of the logits' gradient may be the next one, of two that are up to a quarter apart.
  if (form.gradients) {
    const OpClass of_loss = logits == DType::kBF16 ? OpClass::kRounded : OpClass::kReduction;
    sample.result_classes.assign(form.loss ? 1 : 0, of_loss);
    sample.result_classes.insert(
        sample.result_classes.end(), form.head_gradient ? 2 : 1, OpClass::kRoundedTerms);
  }
  // Tensor cores add in fewer bits than f32.
  sample.device_classes.assign(form.loss ? 1 : 0, OpClass::kRounded);
  if (form.gradients) {
    sample.device_classes.resize(sample.result_classes.size(), OpClass::kNextCodes);
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

void add_codes_samples(DType dtype, SampleList& list) {
  for (const Case& c : kCodesCases) {
    for (const Form& form : kForms) {
      for (const Scales& scales : kScales) {
        if (form.gradients || dtype == DType::kF32) {  // of the loss alone there is one form
          list.push_back(codes_sample(c, form, scales, dtype, DType::kF32));
        }
        if (form.gradients && dtype == DType::kBF16) {
          list.push_back(codes_sample(c, form, scales, dtype, DType::kBF16));
        }
      }
    }
  }
}

}  // namespace

SampleList samples(SamplesOf<CrossEntropyAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      for (const Form& form : kForms) {
        list.push_back(make_sample(c, form, dtype));
        if (dtype == DType::kBF16 && form.gradients) {  // of those of the loss, steps have none
          list.push_back(make_sample(c, form, dtype, DType::kBF16));
        }
      }
    }
    add_codes_samples(dtype, list);
  }
  return list;
}

namespace {

// Codes times what each row of them, or all, are to be multiplied by.
std::vector<double> times_inverse(std::vector<double> codes,
                                  const View& inverse,
                                  std::size_t rows) {
  const auto scales = reals(inverse);
  const std::size_t columns = codes.size() / rows;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] *= scales.size() == 1 ? scales[0] : scales[i / columns];
  }
  return codes;
}

// (columns, rows) -> (rows, columns)
std::vector<double> turned(std::span<const double> from, std::size_t rows) {
  const std::size_t columns = from.size() / rows;
  std::vector<double> to(from.size());
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = from[i % columns * rows + i / columns];
  }
  return to;
}

// All factors as f64, by row of hidden states or entry of the vocabulary.
struct Factors {
  std::vector<double> x;
  std::vector<double> head;
  std::vector<double> head_of_dx;
  std::vector<double> x_of_dhead;
};

Factors factors_of(const CrossEntropyAttrs& attrs, const CrossEntropyOperands& of) {
  const std::size_t rows = conformance::ids(of.labels).size();
  const std::size_t vocab = conformance::bound(of.head, 0);
  const std::size_t channels = conformance::bound(of.head, 1);
  const auto values = [](const View& view) {
    const auto found = reals(view);
    return std::vector<double>(found.begin(), found.end());
  };
  if (!attrs.codes) {
    return {values(of.x), values(of.head), values(of.head), values(of.x)};
  }
  Factors result = {.x = times_inverse(values(of.x), of.inverse_x, rows),
                    .head = times_inverse(values(of.head), of.inverse_head, vocab),
                    .head_of_dx = {},
                    .x_of_dhead = {}};
  if (attrs.gradients) {
    result.head_of_dx = turned(
        times_inverse(values(of.head_transposed), of.inverse_of_head_transposed, channels), vocab);
  }
  if (attrs.makes_head_gradient()) {
    result.x_of_dhead =
        turned(times_inverse(values(of.x_transposed), of.inverse_of_x_transposed, channels), rows);
  }
  return result;
}

// What f8e5m2 makes of x, by the format: three significant bits, multiples of 2^-16.
double round_to_f8e5m2(double x) {
  const double magnitude = std::max(std::abs(x), std::ldexp(1.0, -14));
  const double unit = std::exp2(std::floor(std::log2(magnitude)) - 2);
  return std::nearbyint(x / unit) * unit;
}

// The gradient of a logit as the products read it.
double as_read(const CrossEntropyAttrs& attrs, double seed, double dlogit) {
  if (!attrs.codes) {
    return dlogit;
  }
  double scale = static_cast<float>(57344.0 / seed);
  if (attrs.power_of_two) {
    scale = std::exp2(std::floor(std::log2(scale)));
  }
  const double kept =
      attrs.logits == DType::kBF16 ? to_float(to_bfloat16(static_cast<float>(dlogit))) : dlogit;
  return round_to_f8e5m2(kept * scale) / scale;
}

// y (columns) += a (rows) times the matrix b (rows.., columns).
void add_product(std::span<const double> a, std::span<const double> b, std::span<double> y) {
  for (std::size_t i = 0; i < a.size() * y.size(); ++i) {
    y[i % y.size()] += a[i / y.size()] * b[i];
  }
}

// The matrix y (rows.., columns) += a (rows) times b (columns).
void add_outer(std::span<const double> a, std::span<const double> b, std::span<double> y) {
  for (std::size_t i = 0; i < a.size() * b.size(); ++i) {
    y[i] += a[i / b.size()] * b[i % b.size()];
  }
}

// Of the row that begins at `at`, over the first `vocab` entries.
std::vector<double> logits_of_row(const CrossEntropyAttrs& attrs,
                                  const Factors& factors,
                                  std::size_t at,
                                  std::size_t channels,
                                  std::size_t vocab) {
  std::vector<double> logits(vocab);
  for (std::size_t i = 0; i < vocab * channels; ++i) {
    logits[i / channels] += factors.x[at + i % channels] * factors.head[i];
  }
  if (attrs.logits == DType::kBF16) {
    for (double& logit : logits) {
      logit = to_float(to_bfloat16(static_cast<float>(logit)));
    }
  }
  return logits;
}

// Caps logits, if the op does, and returns by how much each moves with what was capped.
std::vector<double> cap(std::vector<double>& logits, double softcap) {
  std::vector<double> slopes(logits.size(), 1.0);
  for (std::size_t v = 0; softcap > 0.0 && v < logits.size(); ++v) {
    const double part = std::tanh(logits[v] / softcap);
    logits[v] = softcap * part;
    slopes[v] = 1.0 - part * part;
  }
  return slopes;
}

}  // namespace

void reference(const CrossEntropyAttrs& attrs, const Views& views) {
  const CrossEntropyOperands of = by_name(attrs, views);
  const Factors factors = factors_of(attrs, of);
  const auto label = conformance::ids(of.labels);
  const double seed = reals(of.seed)[0];
  const std::size_t channels = conformance::bound(of.head, 1);
  const std::size_t entries = conformance::bound(of.head, 0);
  const std::size_t vocab = attrs.vocab > 0 ? static_cast<std::size_t>(attrs.vocab) : entries;
  double loss = 0;
  std::vector<double> dx(label.size() * channels);
  std::vector<double> dhead(entries * channels);
  if (attrs.accumulate) {
    std::ranges::copy(reals(of.accumulator), dhead.begin());
  }
  for (std::size_t r = 0; r < label.size(); ++r) {
    if (label[r] < 0) {
      continue;
    }
    const std::size_t at = r * channels;
    const auto target = static_cast<std::size_t>(label[r]);
    std::vector<double> logits = logits_of_row(attrs, factors, at, channels, vocab);
    const std::vector<double> slopes = cap(logits, attrs.softcap);
    const double total = log_sum_exp(logits);
    loss += total - logits[target];
    for (std::size_t v = 0; v < vocab; ++v) {
      const double share = std::exp(logits[v] - total) - (v == target ? 1.0 : 0.0);
      logits[v] = as_read(attrs, seed, seed * share * slopes[v]);
    }
    if (attrs.gradients) {
      add_product(logits, factors.head_of_dx, std::span(dx).subspan(at, channels));
    }
    if (attrs.makes_head_gradient()) {
      add_outer(logits, std::span(factors.x_of_dhead).subspan(at, channels), dhead);
    }
  }
  if (attrs.loss) {
    reals(of.loss)[0] = loss;
  }
  if (attrs.gradients) {
    std::ranges::copy(dx, reals(of.dx).begin());
  }
  if (attrs.makes_head_gradient()) {
    std::ranges::copy(dhead, reals(of.dhead).begin());
  }
}

}  // namespace tessera
