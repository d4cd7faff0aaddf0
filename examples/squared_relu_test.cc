// An op from outside passes the checks that every op of Tessera passes.

#include "examples/squared_relu.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/ir/dtype.h"
#include "tessera/ir/view.h"
#include "tessera/ops/custom/custom.h"
#include "tessera/ops/testing/conformance.h"
#include "tessera/ops/testing/reference.h"
#include "tessera/ops/testing/sample.h"

namespace example {

using tessera::conformance::reals;
using tessera::conformance::Sample;

// What the kernels compute, in f64.
void reference(const SquaredReluAttrs&, const tessera::Views& views) {
  std::ranges::transform(reals(views.in[0]), reals(views.out[0]).begin(), [](double x) {
    return x > 0.0 ? x * x : 0.0;
  });
}

void reference(const SquaredReluBackwardAttrs&, const tessera::Views& views) {
  std::ranges::transform(
      reals(views.in[0]), reals(views.in[1]), reals(views.out[0]).begin(), [](double dy, double x) {
        return x > 0.0 ? 2.0 * x * dy : 0.0;
      });
}

namespace {

class SquaredRelu : public testing::TestWithParam<const char*> {
 protected:
  Sample sample(const char* name, tessera::OpRef op, std::size_t num_operands) const {
    const auto type = tessera::conformance::types(tessera::DType::kF32, {GetParam()})[0];
    return {
        .name = name,
        .op = std::move(op),
        .operands = tessera::TensorTypes(num_operands, type),
        .sliced_dim = static_cast<std::int32_t>(type.num_dims()) - 1,
        .custom_references = {tessera::conformance::custom_reference<SquaredReluAttrs>(),
                              tessera::conformance::custom_reference<SquaredReluBackwardAttrs>()}};
  }
};

TEST_P(SquaredRelu, Forward) {
  const Sample forward = sample("forward", tessera::make_custom_op(SquaredReluAttrs{}), 1);
  EXPECT_THAT(check_op(forward), testing::IsEmpty());
}

TEST_P(SquaredRelu, Backward) {
  Sample backward = sample("backward", tessera::make_custom_op(SquaredReluBackwardAttrs{}), 2);
  backward.differentiable = false;
  EXPECT_THAT(check_op(backward), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         SquaredRelu,
                         testing::Values("?[mlp=7]",
                                         "?[seq=4, mlp=6]",
                                         "?[batch=2, seq=3, mlp=5]"));

}  // namespace

}  // namespace example
