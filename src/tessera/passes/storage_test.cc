#include "tessera/passes/storage.h"

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/ir/graph.h"

namespace tessera {
namespace {

// What a product reads lies as in a buffer of its own, whether or not what it was computed from is
// read later.
TEST(Storage, FactorsOfProductsLieAlike) {
  const auto strides = [](const char* kept) {
    const Graph graph = parse_graph(format(R"(graph "forward" {{
      %0: f32[batch=2, embed=6] = input "x"
      %1: f32[both=14, embed=6] = parameter "up" normal(0, 0.02, 0)
      %2: f32[embed=6, mlp=7] = parameter "down" normal(0, 0.02, 0)
      %3: f32[batch=2, both=14] = matmul {{transpose_b=true}}(%0, %1) @forward
      %4: f32[batch=2, mlp=7] = slice {{dim=1, size=7, name="mlp"}}(%3) @forward
      %5: f32[batch=2, mlp=7] = slice {{dim=1, begin=7, size=7, name="mlp"}}(%3) @forward
      %6: f32[batch=2, mlp=7] = swiglu(%4, %5) @forward
      %7: f32[batch=2, embed=6] = matmul {{transpose_b=true}}(%6, %2) @forward
      output "y" = %7
      {}
    }})",
                                           kept));
    return assign_storage(graph).tensors[6].strides;
  };
  EXPECT_EQ(strides(""), strides(R"(output "gate" = %4
      output "up" = %5)"));
}

// A product before what works in place in front of a concat is not made inside that.
TEST(Storage, ProductsLieAlike) {
  const auto strides = [](const char* kept) {
    const Graph graph = parse_graph(format(R"(graph "forward" {{
      %0: f32[batch=2, embed=6] = input "x"
      %1: f32[mlp=7, embed=6] = parameter "a" normal(0, 0.02, 0)
      %2: f32[batch=2, mlp=7] = input "gate"
      %3: f32[batch=2, mlp=7] = matmul {{transpose_b=true}}(%0, %1) @forward
      %4: f32[batch=2, mlp=7] = swiglu(%3, %2) @forward
      %5: f32[batch=2, mlp=7] = swiglu(%2, %2) @forward
      %6: f32[batch=2, both=14] = concat {{num_operands=2, dim=1, name="both"}}(%4, %5) @forward
      output "y" = %6
      {}
    }})",
                                           kept));
    return assign_storage(graph).tensors[3].strides;
  };
  EXPECT_EQ(strides(""), strides("output \"product\" = %3"));
}

}  // namespace
}  // namespace tessera
