#include <cmath>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/adamw/adamw.h"
#include "tessera/ops/adamw/adamw_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::constant;
using conformance::normal;
using conformance::OpClass;
using conformance::reals;
using conformance::Sample;
using conformance::uniform_between;

namespace {

// The step's scalars in operand order.
struct Scalars {
  std::string_view name;
  double lr;
  double t;
  double scale;
  double apply;
};

constexpr Scalars kScalars[] = {{"first", 1e-3, 1, 1.0, 1},
                                {"clipped", 0.02, 7, 0.25, 1},
                                {"late", 3e-4, 1000, 0.5, 1},
                                {"skipped", 1e-3, 5, 0.5, 0}};

struct Form {
  std::string_view name;
  DType parameter;
  DType gradient;
  DType moments = DType::kF32;
};

constexpr Form kForms[] = {{"f32", DType::kF32, DType::kF32},
                           {"f32_bf16_gradient", DType::kF32, DType::kBF16},
                           {"master", DType::kBF16, DType::kF32},
                           {"master_bf16_gradient", DType::kBF16, DType::kBF16},
                           {"f32_bf16_moments", DType::kF32, DType::kF32, DType::kBF16},
                           {"bf16_all", DType::kBF16, DType::kBF16, DType::kBF16}};

constexpr std::string_view kShapes[] = {"[embed=1]",
                                        "[embed=7]",
                                        "[vocab=6, embed=38]",
                                        "[vocab=130, embed=67]",
                                        "[vocab=129, embed=104]"};

Sample make_sample(const Form& form, const Scalars& scalars, std::string_view shape) {
  AdamwAttrs attrs{.master = form.parameter != DType::kF32};
  if (scalars.name == "clipped") {
    attrs = {.beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.5, .master = attrs.master};
  }
  const TensorType f32 = conformance::types(DType::kF32, {format("?{}", shape)})[0];
  const TensorType moment = with_dtype(f32, form.moments);
  Sample sample{
      .name = format("{}_{}_{}", form.name, scalars.name, f32.num_elements()),
      .op = make_op(attrs),
      .operands = {with_dtype(f32, form.parameter), with_dtype(f32, form.gradient), moment, moment},
      .fills = {normal(0.5), normal(0.1), normal(0.05), uniform_between(0.0, 0.02)},
      .differentiable = false};
  if (attrs.master) {
    sample.operands.push_back(f32);
    sample.fills.push_back(normal(0.5));
  }
  for (const double scalar : {scalars.lr, scalars.t, scalars.scale, scalars.apply}) {
    sample.operands.push_back(scalar_type(DType::kF32));
    sample.fills.push_back(constant(scalar));
  }
  if (scalars.apply == 0) {
    sample.op_class = OpClass::kExact;
  }
  return sample;
}

}  // namespace

SampleList samples(SamplesOf<AdamwAttrs>) {
  SampleList list;
  for (const Form& form : kForms) {
    for (const Scalars& scalars : kScalars) {
      for (const std::string_view shape : kShapes) {
        list.push_back(make_sample(form, scalars, shape));
      }
    }
  }
  return list;
}

void reference(const AdamwAttrs& attrs, const Views& views) {
  const AdamwOperands of = by_name(attrs, views);
  const double lr = reals(of.lr)[0];
  const double t = reals(of.t)[0];
  const double scale = reals(of.scale)[0];
  const bool apply = reals(of.apply)[0] != 0;
  for (std::size_t i = 0; i < reals(of.parameter).size(); ++i) {
    double parameter = reals(of.parameter)[i];
    double w = attrs.master ? reals(of.master)[i] : parameter;
    double m = reals(of.m)[i];
    double v = reals(of.v)[i];
    if (apply) {
      const double g = reals(of.gradient)[i] * scale;
      m = attrs.beta1 * m + (1 - attrs.beta1) * g;
      v = attrs.beta2 * v + (1 - attrs.beta2) * g * g;
      const double m_hat = m / (1 - std::pow(attrs.beta1, t));
      const double v_hat = v / (1 - std::pow(attrs.beta2, t));
      w = w * (1 - lr * attrs.weight_decay) - lr * m_hat / (std::sqrt(v_hat) + attrs.eps);
      parameter = w;
    }
    reals(of.new_parameter)[i] = parameter;
    reals(of.new_m)[i] = m;
    reals(of.new_v)[i] = v;
    if (attrs.master) {
      reals(of.new_master)[i] = w;
    }
  }
}

}  // namespace tessera
