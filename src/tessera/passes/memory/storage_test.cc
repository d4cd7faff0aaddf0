#include "tessera/passes/memory/storage.h"

#include <cstdint>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/ir/graph.h"
#include "tessera/passes/memory/share_states.h"
#include "tessera/program/program.h"

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

// The update's sum of accumulators takes the memory of one that nothing reads later; before the
// update all microbatches need them.
TEST(Storage, SumsOfAccumulatorsLieOverOneOfThem) {
  const auto place_of_sum = [](const char* phase, const char* more) {
    const Graph graph = parse_graph(format(R"(graph "uses" {{
      %0: f32[n=4] = input "x"
      %1: f32[n=4] = parameter "w" normal(0, 1, 0)
      %2: f32[n=4] = gradient "first" of "w"
      %3: f32[n=4] = gradient "second" of "w" use 1
      %4: f32[n=4] = add(%2, %0) @backward
      %5: f32[n=4] = add(%3, %0) @backward
      %6: f32[n=4] = add(%4, %5) {}
      %7: f32[n=4] = mul(%6, %6) @update
      {}
      update %2 = %4
      update %3 = %5
      output "y" = %7
    }})",
                                           phase,
                                           more));
    const Storage storage = assign_storage(graph);
    EXPECT_EQ(storage.tensors[4], storage.tensors[2]);
    EXPECT_EQ(storage.tensors[5], storage.tensors[3]);
    const TensorRef& sum = storage.tensors[6];
    return std::string(sum == storage.tensors[2]   ? "first"
                       : sum == storage.tensors[3] ? "second"
                                                   : "its own");
  };
  EXPECT_EQ(place_of_sum("@update", ""), "first");
  EXPECT_EQ(place_of_sum("@update", "%8: f32[n=4] = gelu(%5) @update"), "first");
  EXPECT_EQ(place_of_sum("@update", "%8: f32[n=4] = gelu(%4) @update"), "second");
  EXPECT_EQ(place_of_sum("@update", "output \"first\" = %4"), "second");
  EXPECT_EQ(place_of_sum("@update", "output \"first\" = %4 output \"second\" = %5"), "its own");
  EXPECT_EQ(place_of_sum("@backward", ""), "its own");
}

// A program beside another has its states, and must take them for the same.
TEST(ShareStates, AreTheSameInBothPrograms) {
  const auto program = [](std::string_view name, std::string_view copy) {
    return parse_program(format(R"(program "{}" microbatches 1 arena 2048 {{
      stream "compute"
      buffer 0 "w" parameter 64 bytes at ({}) persistent
      buffer 1 "copy" secondary 64 bytes at ({}) persistent
      state "w" parameter = #0+0 f32[n=16] strides(1)
      state "copy" {} = #1+0 f32[n=16] strides(1)
    }})",
                                name,
                                name == "owner" ? "256" : "",
                                name == "owner" ? "512" : "",
                                copy));
  };
  const std::string_view copy = "secondary of \"w\" wire \"int8\"";
  const Program owner = program("owner", copy);
  const Program shared = share_states(program("beside", copy), owner);
  EXPECT_EQ(shared.buffers[0].offsets, std::vector<std::int64_t>{256});
  EXPECT_EQ(shared.buffers[1].offsets, std::vector<std::int64_t>{512});
  EXPECT_EQ(shared.states, owner.states);
  const std::string message = error_of(ErrorCode::kInternal, [&] {
    share_states(program("beside", "secondary of \"w\" wire \"int4\""), owner);
  });
  EXPECT_NE(message.find("state copy is a secondary of \"w\" wire \"int4\", and in program owner a "
                         "secondary of \"w\" wire \"int8\""),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace tessera
