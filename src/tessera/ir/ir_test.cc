#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ir/builder.h"
#include "tessera/ir/graph.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/rms_norm/rms_norm.h"
#include "tessera/ops/swiglu/swiglu.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

template <class Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "");
}

TEST(TensorType, PrintsAndParses) {
  const TensorType type{.dtype = DType::kBF16,
                        .dims = {{.name = "batch", .bound = 4},
                                 {.name = "tokens", .bound = 512, .count = ValueId{7}},
                                 {.name = "heads+kv_heads", .bound = 24}}};
  EXPECT_EQ(to_string(type), "bf16[batch=4, tokens=512:%7, heads+kv_heads=24]");
  EXPECT_EQ(parse_tensor_type(to_string(type)), type);
  EXPECT_EQ(parse_tensor_type("f32[]"), (TensorType{.dtype = DType::kF32, .dims = {}}));
  EXPECT_THAT(error_of([] { parse_tensor_type("f31[a=1]"); }).what(),
              HasSubstr("column 1: found 'f31[a=1]', expected a dtype"));
  EXPECT_THAT(error_of([] { parse_tensor_type("f32[a=1"); }).what(), HasSubstr("expected ','"));
}

// A graph of random ops on values of a few shapes, some with attributes and several results.
Graph random_graph(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](std::size_t count) { return std::size_t{random()} % count; };
  GraphBuilder builder("random " + std::to_string(seed), DType::kF32);
  const TensorType square{.dtype = DType::kF32,
                          .dims = {{.name = "rows", .bound = 6}, {.name = "embed", .bound = 6}}};
  std::vector<Value> values = {builder.parameter("w", square, {.std = 0.02, .cut = 3.0}),
                               builder.state(ValueKind::kGradient, "a state", square),
                               builder.state(ValueKind::kOptimizer, "moment\"1", square)};
  const Value gain =
      builder.parameter("gain", {.dtype = DType::kF32, .dims = {square.dims[1]}}, {.mean = 1.0});
  const Value factor = builder.scalar("factor");
  for (int i = 0; i < 30; ++i) {
    builder.set_layer(static_cast<std::int32_t>(draw(4)) - 1);
    builder.set_phase(static_cast<Phase>(draw(4)));
    const Value a = values[draw(values.size())];
    const Value b = values[draw(values.size())];
    switch (draw(7)) {
      case 0:
        values.push_back(add(a, b));
        break;
      case 1:
        values.push_back(mul(a, b));
        break;
      case 2:
        values.push_back(gelu(a));
        break;
      case 3:
        values.push_back(swiglu(a, b));
        break;
      case 4:
        values.push_back(matmul(a, b, {.transpose_a = draw(2) == 1, .transpose_b = draw(2) == 1}));
        break;
      case 5:
        values.push_back(rms_norm(a, gain, 1e-5 * static_cast<double>(1 + draw(3))));
        break;
      default:
        values.push_back(scale(a, factor));
        break;
    }
  }
  builder.output("result", values.back());
  Graph graph = builder.take();
  // Random transposes may give dims another order of names; what is compared is the whole graph.
  return graph;
}

TEST(Graph, RandomGraphsPrintAndParse) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const Graph graph = random_graph(seed);
    const Graph parsed = parse_graph(to_string(graph));
    EXPECT_TRUE(equal(graph, parsed)) << to_string(graph);
    EXPECT_EQ(to_string(graph), to_string(parsed));
  }
}

constexpr std::string_view kSmall = R"(graph "small" {
  %0: f32[rows=2, embed=3] = input "x"
  %1: f32[out=4, embed=3] = parameter "w" normal(0, 0.02, 3)
  %2: f32[rows=2, out=4] = matmul {transpose_b=true}(%0, %1) @forward layer 0
  %3: f32[rows=2, out=4] = gelu(%2) @forward
  output "y" = %3
}
)";

std::string replaced(std::string_view from, std::string_view to) {
  std::string text(kSmall);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Graph, TextIsStable) {
  EXPECT_EQ(to_string(parse_graph(kSmall)), kSmall);
}

TEST(Graph, ParserNamesThePlace) {
  const auto message = [](std::string_view from, std::string_view to) {
    return std::string(error_of([&] { parse_graph(replaced(from, to)); }).what());
  };
  EXPECT_THAT(message("gelu", "gelo"), HasSubstr("expected an op instead of gelo"));
  EXPECT_THAT(message("gelu", "gelo"), HasSubstr("line 5"));
  EXPECT_THAT(message("transpose_b", "transpose_c"),
              HasSubstr("matmul has no attribute transpose_c"));
  EXPECT_THAT(message("@forward layer", "@sideways layer"), HasSubstr("expected a phase"));
  EXPECT_THAT(message("output \"y\"", "output y"), HasSubstr("expected '\"'"));
}

TEST(Graph, VerifierFindsFaults) {
  const auto message = [](std::string_view from, std::string_view to) {
    const Error error = error_of([&] { parse_graph(replaced(from, to)); });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return std::string(error.what());
  };
  EXPECT_THAT(message("gelu(%2)", "gelu(%3)"),
              HasSubstr("operand %3 is used before it is defined"));
  EXPECT_THAT(message("%3: f32[rows=2, out=4] = gelu", "%3: f32[rows=2, out=5] = gelu"),
              HasSubstr("the op infers f32[rows=2, out=4]"));
  EXPECT_THAT(message("gelu(%2)", "add(%2)"), HasSubstr("add has 1 operands"));
  EXPECT_THAT(message("parameter \"w\"", "parameter \"x\""), HasSubstr("not unique"));
  EXPECT_THAT(message("output \"y\" = %3", "output \"y\" = %9"),
              HasSubstr("output y is not defined"));
}

TEST(Builder, RefusesWrongOperands) {
  GraphBuilder builder("g");
  const Value x =
      builder.input("x",
                    {.dtype = DType::kF32,
                     .dims = {{.name = "rows", .bound = 2}, {.name = "embed", .bound = 3}}});
  const Value w = builder.parameter(
      "w",
      {.dtype = DType::kF32, .dims = {{.name = "out", .bound = 4}, {.name = "embed", .bound = 5}}},
      {});
  const Error shapes = error_of([&] { linear(x, w); });
  EXPECT_EQ(shapes.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(shapes.what(),
              HasSubstr("contracted dims differ: f32[rows=2, embed=3] and f32[out=4"));
  GraphBuilder other("other");
  const Value foreign = other.scalar("s");
  EXPECT_THAT(error_of([&] { scale(x, foreign); }).what(), HasSubstr("belongs to another graph"));
}

}  // namespace
}  // namespace tessera
