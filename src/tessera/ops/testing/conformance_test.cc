#include "tessera/ops/testing/conformance.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"
#include "tessera/ops/testing/tolerance.h"

// The checks must find what they are for: each test breaks one facet of a small op in one way.
namespace tessera::conformance {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

enum class Defect : std::uint8_t {
  kNone,
  kWrongElement,
  kUnwrittenElement,
  kWritesBehind,
  kChangesOperand,
  kSmallWorkspace,
  kDependsOnWorkspace,
  kUnsafeAlias,
  kIgnoresStrides,
  kWrongGradient,
  kNoGradient,
  kLooseEquality,
  kMissingReduce,
  kMissingDim,
};

// y[r, c] = factor * x[r, c]; total[c] = sum_r x[r, c]; f32.
struct ProbeAttrs {
  double factor = 1.0;
  Defect defect = Defect::kNone;

  friend bool operator==(const ProbeAttrs& a, const ProbeAttrs& b) {
    return a.defect == b.defect && (a.factor == b.factor || a.defect == Defect::kLooseEquality);
  }
};

OpInfo info(const ProbeAttrs&) {
  return {.name = "probe",
          .num_operands = 1,
          .num_results = 2,
          .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const ProbeAttrs&, Types in) {
  require_dims(in, 0, 2);
  return {in[0], {.dtype = DType::kF32, .dims = {in[0].dims[1]}}};
}

FactorRule factors(const ProbeAttrs& attrs, Types) {
  if (attrs.defect == Defect::kMissingDim) {
    return parse_factor_rule("(r c) -> (r c), (r c) | reduce r");
  }
  return parse_factor_rule(attrs.defect == Defect::kMissingReduce
                               ? "(r c) -> (r c), (c)"
                               : "(r c) -> (r c), (c) | reduce r");
}

Works work(const ProbeAttrs& attrs, Types in) {
  return streaming_work(0.0, in, infer(attrs, in));
}

// make_custom_op() needs all facets, and so stands behind them.
OpRef make_probe(const ProbeAttrs& attrs);

void backward(const ProbeAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (!dy || !grad.start(0) || attrs.defect == Defect::kNoGradient) {
    return;
  }
  const double slope = attrs.defect == Defect::kWrongGradient ? 1.001 * attrs.factor : attrs.factor;
  grad.set(0, dy->builder->emit(make_probe({.factor = slope}), {*dy})[0]);
}

void visit(ProbeAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("factor", attrs.factor);
  auto defect = static_cast<std::int64_t>(attrs.defect);
  visitor.field("defect", defect);
  attrs.defect = static_cast<Defect>(defect);
}

std::int64_t workspace_bytes(const ProbeAttrs&, cpu::Context&, Types) {
  return 4;
}

float& element(const View& view, std::int64_t row, std::int64_t column) {
  return view.as<float>()[row * view.strides[0] + column * view.strides[1]];
}

void write_totals(const View& x, const View& total) {
  for (std::int64_t c = 0; c < x.sizes[1]; ++c) {
    total.as<float>()[c] = 0;
    for (std::int64_t r = 0; r < x.sizes[0]; ++r) {
      total.as<float>()[c] += element(x, r, c);
    }
  }
}

void spoil(Defect defect, const Views& views) {
  float* y = views.out[0].as<float>();
  const std::int64_t count = views.out[0].num_elements();
  if (defect == Defect::kWrongElement) {
    element(views.out[0], 1, 2) *= 1.00001F;
  } else if (defect == Defect::kWritesBehind) {
    y[count] = 0;
  } else if (defect == Defect::kChangesOperand) {
    views.in[0].as<float>()[0] += 1;
  } else if (defect == Defect::kSmallWorkspace) {
    reinterpret_cast<float*>(views.workspace.data())[1] = 0;
  } else if (defect == Defect::kDependsOnWorkspace) {
    // Within the tolerance, so that the comparison with the reference does not see it.
    y[0] *= views.workspace[0] == std::byte{0xFF} ? 1.0F : 1.0000001F;
  }
}

void run(const ProbeAttrs& attrs, cpu::Context&, const Views& views) {
  const View& x = views.in[0];
  View y = views.out[0];
  if (attrs.defect == Defect::kIgnoresStrides) {
    y.strides = {y.sizes[1], 1};
  }
  if (attrs.defect != Defect::kUnsafeAlias) {
    write_totals(x, views.out[1]);
  }
  const std::int64_t skipped =
      attrs.defect == Defect::kUnwrittenElement ? x.num_elements() - 1 : -1;
  for (std::int64_t i = 0; i < x.num_elements(); ++i) {
    const std::int64_t r = i / x.sizes[1];
    const std::int64_t c = i % x.sizes[1];
    if (i != skipped) {
      element(y, r, c) = static_cast<float>(attrs.factor) * element(x, r, c);
    }
  }
  if (attrs.defect == Defect::kUnsafeAlias) {
    write_totals(x, views.out[1]);
  }
  spoil(attrs.defect, views);
}

void reference(const ProbeAttrs& attrs, const Views& views) {
  const auto x = reals(views.in[0]);
  const auto total = reals(views.out[1]);
  std::ranges::fill(total, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    reals(views.out[0])[i] = attrs.factor * x[i];
    total[i % total.size()] += x[i];
  }
}

OpRef make_probe(const ProbeAttrs& attrs) {
  return make_custom_op(attrs);
}

Sample probe(Defect defect) {
  return {.name = "broken",
          .op = make_probe({.factor = 0.75, .defect = defect}),
          .operands = types(DType::kF32, {"f32[row=4, column=6]"}),
          .fills = {uniform_between(1.0, 2.0)},
          .sliced_dim = 1,
          .custom_references = {custom_reference<ProbeAttrs>()}};
}

Failures kernel_failures(Defect defect) {
  return check_kernel(probe(defect));
}

TEST(Conformance, AcceptsASoundOp) {
  EXPECT_THAT(check_op(probe(Defect::kNone)), IsEmpty());
}

TEST(Conformance, FindsAWrongElement) {
  EXPECT_THAT(kernel_failures(Defect::kWrongElement),
              Contains(HasSubstr("result 0: element 8 of f32[row=4, column=6]")));
}

TEST(Conformance, FindsAnElementThatIsNotWritten) {
  EXPECT_THAT(kernel_failures(Defect::kUnwrittenElement),
              Contains(HasSubstr("result 0: element 23 of f32[row=4, column=6] is -nan")));
}

TEST(Conformance, FindsWritesBehindAResult) {
  EXPECT_THAT(kernel_failures(Defect::kWritesBehind),
              Contains(HasSubstr("writes outside its result 0")));
}

TEST(Conformance, FindsAChangedOperand) {
  EXPECT_THAT(kernel_failures(Defect::kChangesOperand),
              Contains(HasSubstr("changes its operand 0")));
}

TEST(Conformance, FindsUseOfMoreWorkspaceThanAskedFor) {
  EXPECT_THAT(kernel_failures(Defect::kSmallWorkspace),
              Contains(HasSubstr("writes outside its workspace of 4 bytes")));
}

TEST(Conformance, FindsDependenceOnOldMemory) {
  EXPECT_THAT(kernel_failures(Defect::kDependsOnWorkspace),
              Contains(HasSubstr("result 0 changes with what its memory held before")));
}

TEST(Conformance, FindsAnUnsafeAlias) {
  EXPECT_THAT(kernel_failures(Defect::kUnsafeAlias),
              Contains(HasSubstr("result 1 changes with result 0 over operand 0")));
}

TEST(Conformance, FindsAKernelThatIgnoresStrides) {
  EXPECT_THAT(kernel_failures(Defect::kIgnoresStrides),
              Contains(HasSubstr("result 0 changes on slices of dim 1")));
}

TEST(Conformance, FindsAWrongGradient) {
  EXPECT_THAT(check_gradient(probe(Defect::kWrongGradient)),
              Contains(HasSubstr("gradient of operand 0 against differences")));
}

TEST(Conformance, FindsAMissingGradient) {
  EXPECT_THAT(check_gradient(probe(Defect::kNoGradient)),
              Contains(HasSubstr("backward() sets no gradient for operand 0")));
}

TEST(Conformance, FindsAGradientWhereTheSampleHasNone) {
  Sample sample = probe(Defect::kNone);
  sample.differentiable = false;
  EXPECT_THAT(check_gradient(sample), Contains(HasSubstr("the sample says that it has none")));
}

TEST(Conformance, FindsAnEqualityThatOverlooksAnAttribute) {
  EXPECT_THAT(check_attributes(probe(Defect::kLooseEquality)),
              Contains(HasSubstr("ops that differ in factor compare equal")));
}

TEST(Conformance, FindsAMissingReduction) {
  EXPECT_THAT(check_shards(probe(Defect::kMissingReduce)),
              Contains(HasSubstr("split along r, result 1: element")));
}

TEST(Conformance, FindsARuleThatDoesNotFitTheTypes) {
  EXPECT_THAT(check_factors(probe(Defect::kMissingDim)),
              Contains(HasSubstr("the rule gives result 1 2 dims: f32[column=6]")));
}

// A few elements that are far off are let pass, all of them a little off are not.
TEST(Conformance, FindsWhatIsOffAsAWhole) {
  HostTensor expected(parse_tensor_type("f64[n=10000]"));
  HostTensor few = expected;
  HostTensor all = expected;
  for (std::size_t i = 0; i < expected.f64().size(); ++i) {
    const double value = i % 2 == 0 ? 1 : -1;
    expected.f64()[i] = value;
    few.f64()[i] = i % 2000 == 0 ? 1.1 * value : value;
    all.f64()[i] = 1.05 * value;
  }
  const Tolerance limit = tolerance(OpClass::kNextCodes, DType::kF32);
  EXPECT_EQ(difference(few, expected, limit), std::nullopt);
  EXPECT_THAT(difference(all, expected, limit).value_or(""), HasSubstr("off by 0.05 of its norm"));
}

TEST(Conformance, NamesTheSample) {
  EXPECT_THAT(check_op(probe(Defect::kWrongElement)),
              Contains(testing::StartsWith("probe.broken: result 0")));
}

}  // namespace
}  // namespace tessera::conformance
