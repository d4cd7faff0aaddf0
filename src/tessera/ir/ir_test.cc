#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ir/builder.h"
#include "tessera/ir/graph.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/testing/all_samples.h"

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

TEST(TensorType, RefusesMoreThan64Bits) {
  const TensorType type = parse_tensor_type("i32[batch=2147483647, seq=2147483647]");
  EXPECT_EQ(type.num_elements(), 2147483647LL * 2147483647LL);
  const Error bytes = error_of([&] { type.num_bytes(); });
  EXPECT_EQ(bytes.code(), ErrorCode::kOutOfMemory);
  EXPECT_STREQ(bytes.what(),
               "a tensor of i32[batch=2147483647, seq=2147483647] has more than 2^63 bytes");
  const TensorType larger = parse_tensor_type("u8[a=2147483647, b=2147483647, c=3]");
  const Error elements = error_of([&] { larger.num_elements(); });
  EXPECT_EQ(elements.code(), ErrorCode::kOutOfMemory);
  EXPECT_STREQ(elements.what(),
               "a tensor of u8[a=2147483647, b=2147483647, c=3] has more than 2^63 elements");
}

// A graph of random ops with their samples' attributes, on sources of every kind and on results of
// each other.
class RandomGraph {
 public:
  RandomGraph(std::uint32_t seed, const std::vector<conformance::Sample>& samples)
      : random_(seed), samples_(samples), builder_(name()) {}

  Graph draw_graph() {
    for (int i = 0; i < 25; ++i) {
      const conformance::Sample& sample = samples_[draw(samples_.size())];
      std::vector<Value> operands;
      for (const TensorType& type : sample.operands) {
        operands.push_back(operand(type));
      }
      builder_.set_layer(static_cast<std::int32_t>(draw(4)) - 1);
      builder_.set_phase(static_cast<Phase>(draw(4)));
      const std::vector<Value> results = builder_.emit(sample.op, operands);
      values_.insert(values_.end(), results.begin(), results.end());
    }
    update_states();
    for (std::size_t i = draw(4); i > 0; --i) {
      builder_.output(name(), values_[draw(values_.size())]);
    }
    return builder_.take();
  }

 private:
  std::size_t draw(std::size_t count) { return std::size_t{random_()} % count; }

  // Unique, with letters that mean something to the scanner.
  std::string name() {
    static constexpr std::string_view kLetters = "ab01 \"\\\n;{}()[]#%=,+-.:\t";
    std::string result = std::to_string(num_names_++) + "/";
    for (std::size_t i = draw(8); i > 0; --i) {
      result += kLetters[draw(kLetters.size())];
    }
    return result;
  }

  Value operand(const TensorType& type) {
    std::vector<Value> fitting;
    std::copy_if(
        values_.begin(), values_.end(), std::back_inserter(fitting), [&](const Value& value) {
          return value.type() == type;
        });
    if (!fitting.empty() && draw(3) > 0) {
      return fitting[draw(fitting.size())];
    }
    values_.push_back(source(type));
    return values_.back();
  }

  Value source(const TensorType& type) {
    switch (draw(8)) {
      case 0:
        return builder_.input(name(), type);
      case 1:
        return type.dims.empty() ? builder_.scalar(name(), type.dtype)
                                 : builder_.input(name(), type);
      case 2:
        return builder_.parameter(name(),
                                  type,
                                  {.mean = static_cast<double>(draw(2)),
                                   .std = 0.1 * static_cast<double>(draw(9)),
                                   .cut = static_cast<double>(draw(4))});
      case 3:
        return builder_.state({.parameter = parameter(),
                               .role = StateRole::kSecondary,
                               .wire = {.formats = WireFormats(draw(3), WireFormat::kInt8),
                                        .block = std::int64_t{2} << draw(8)}},
                              name(),
                              type);
      case 4:
        return builder_.state(
            {.parameter = parameter(), .role = StateRole::kGradient}, name(), type);
      case 5:
        return builder_.state(
            {.role = draw(2) == 0 ? StateRole::kCache : StateRole::kSum}, name(), type);
      case 6:
        return builder_.buffer(name(), type, {.std = 0.1 * static_cast<double>(draw(9))});
      default:
        return builder_.state({.parameter = parameter(), .role = optimizer_role()}, name(), type);
    }
  }

  // A new one.
  std::string parameter() {
    std::string result = name();
    builder_.parameter(result, {.dtype = DType::kF32, .dims = {}}, {});
    return result;
  }

  StateRole optimizer_role() {
    constexpr std::array kRoles = {StateRole::kMoment1, StateRole::kMoment2, StateRole::kMaster};
    return kRoles[draw(kRoles.size())];
  }

  void update_states() {
    for (const ValueId state : builder_.graph().sources(ValueKind::kOptimizer)) {
      builder_.update(builder_.handle(state), operand(builder_.graph()[state].type));
    }
  }

  std::mt19937 random_;
  const std::vector<conformance::Sample>& samples_;
  int num_names_ = 0;
  GraphBuilder builder_;
  std::vector<Value> values_;
};

TEST(Graph, RandomGraphsPrintAndParse) {
  const std::vector<conformance::Sample> samples = conformance::all_samples();
  std::vector<OpRef> custom_ops;
  for (const conformance::Sample& sample : samples) {
    if (sample.op->get_if<CustomOp>() != nullptr) {
      custom_ops.push_back(sample.op);
    }
  }
  std::size_t num_inner = 0;  // operands that are results
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const Graph graph = RandomGraph(seed, samples).draw_graph();
    const std::string text = to_string(graph);
    const Graph parsed = parse_graph(text, custom_ops);
    EXPECT_TRUE(equal(graph, parsed)) << text;
    EXPECT_EQ(to_string(parsed), text);
    for (const Node& node : graph.nodes) {
      for (const ValueId operand : node.operands) {
        num_inner += graph[operand].kind == ValueKind::kResult ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_inner, 100);
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

// What leaves is a result of forward.
TEST(GraphText, SaysWhatLeaves) {
  constexpr std::string_view kText = R"(graph "leaving" {
  %0: f32[n=2] = input "x"
  %1: f32[n=2] leaves = gelu(%0) @forward layer 0
  output "y" = %1
}
)";
  const Graph graph = parse_graph(kText);
  EXPECT_TRUE(graph[ValueId{1}].leaves);
  EXPECT_EQ(to_string(graph), kText);
  Graph other = graph;
  other[ValueId{1}].leaves = false;
  EXPECT_FALSE(equal(other, graph));
  for (const auto& [from, to] :
       {std::pair("@forward", "@backward"), std::pair("[n=2] = input", "[n=2] leaves = input")}) {
    std::string text(kText);
    text.replace(text.find(from), std::string_view(from).size(), to);
    EXPECT_THAT(error_of([&] { parse_graph(text); }).what(),
                HasSubstr("leaves for backward, and is no result of forward"));
  }
}

constexpr std::string_view kStates = R"(graph "states" {
  %0: f32[n=2] = parameter "w" normal(0, 0.02, 0)
  %1: f32[n=2] = parameter "v" normal(0, 0.02, 0) frozen
  %2: f32[n=2] = secondary "a copy" of "w" wire "int8 int4" block 64
  %3: f32[n=2] = secondary "another" of "v"
  %4: f32[n=2] = gradient "dw" of "w"
  %5: f32[] = sum "loss"
  %6: f32[n=2] = moment1 "m" of "w"
  %7: f32[n=2] = moment2 "n" of "w"
  %8: f32[n=2] = master "master" of "w"
  %9: f32[n=2] = cache "keys"
  %10: f32[n=2] = buffer "mean" normal(0.5, 0, 0)
  %11: f32[n=2] = gradient "dw again" of "w" use 3
}
)";

TEST(States, HaveTextThatParsesBack) {
  const Graph graph = parse_graph(kStates);
  EXPECT_EQ(to_string(graph), kStates);
  EXPECT_EQ(graph[ValueId{0}].state, State{.parameter = "w"});
  EXPECT_EQ(graph[ValueId{2}].state,
            (State{.parameter = "w",
                   .role = StateRole::kSecondary,
                   .wire = {.formats = {WireFormat::kInt8, WireFormat::kInt4}, .block = 64}}));
  EXPECT_EQ(graph.find_state("v", StateRole::kSecondary), ValueId{3});
  EXPECT_EQ(graph.find_state("w", StateRole::kMoment2), ValueId{7});
  EXPECT_FALSE(graph.find_state("v", StateRole::kMoment1).valid());
  EXPECT_EQ(graph.sources(ValueKind::kOptimizer).size(), 3);
  EXPECT_EQ(graph[ValueId{10}].state, (State{.parameter = "mean", .role = StateRole::kBuffer}));
  EXPECT_EQ(graph[ValueId{10}].init, Initializer{.mean = 0.5});
  EXPECT_EQ(graph[ValueId{11}].state,
            (State{.parameter = "w", .role = StateRole::kGradient, .use = 3}));
  EXPECT_EQ(graph.trained_parameters(), std::vector<ValueId>{ValueId{0}});
}

// What a pipeline rank has of a parameter that is another rank's.
TEST(States, MayBeOfACopyAlone) {
  const std::string text = R"(graph "copies" {
  %0: f32[n=2] = secondary "copy" of "w"
  %1: f32[n=1] = secondary "part" of "w" wire "int8"
  %2: f32[n=2] = gradient "dw" of "w" use 1
}
)";
  EXPECT_EQ(to_string(parse_graph(text)), text);
  const auto message = [&](std::string_view from, std::string_view to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return std::string(error_of([&] { parse_graph(changed); }).what());
  };
  EXPECT_THAT(message("\"dw\" of \"w\"", "\"dw\" of \"v\""),
              HasSubstr("a gradient of \"v\", which is no parameter (state \"dw\")"));
  EXPECT_THAT(message("gradient \"dw\" of \"w\" use 1", "moment1 \"m\" of \"w\""),
              HasSubstr("a moment1 of \"w\", which is no parameter (state \"m\")"));
  EXPECT_THAT(message("\"copy\" of \"w\"", "\"copy\""),
              HasSubstr("a secondary of \"\", which is no parameter (state \"copy\")"));
}

TEST(States, AreVerified) {
  const auto fault = [](const std::string& from, const std::string& to) {
    std::string text(kStates);
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return error_of([&] { parse_graph(text.replace(at, from.size(), to)); });
  };
  const auto message = [&](const std::string& from, const std::string& to) {
    const Error error = fault(from, to);
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return std::string(error.what());
  };
  EXPECT_THAT(message("\"m\" of \"w\"", "\"m\" of \"x\""),
              HasSubstr("a moment1 of \"x\", which is no parameter (state \"m\")"));
  EXPECT_THAT(message("\"m\" of \"w\"", "\"m\""),
              HasSubstr("a moment1 of \"\", which is no parameter (state \"m\")"));
  EXPECT_THAT(message("moment2 \"n\"", "moment1 \"n\""),
              HasSubstr("a second moment1 of \"w\" (state \"n\")"));
  EXPECT_THAT(message("\"w\" use 3", "\"w\""),
              HasSubstr("a second gradient of \"w\" (state \"dw again\")"));
  EXPECT_THAT(message("\"dw\" of \"w\"", "\"dw\" of \"w\" use 3"),
              HasSubstr("a second gradient of \"w\" use 3 (state \"dw again\")"));
  EXPECT_THAT(message("\"w\" use 3", "\"w\" use -3"),
              HasSubstr("a gradient of use -3, expected 0, or more of a gradient"));
  EXPECT_THAT(message("\"m\" of \"w\"", "\"m\" of \"w\" use 1"),
              HasSubstr("a moment1 of use 1, expected 0, or more of a gradient (state \"m\")"));
  EXPECT_THAT(message("cache \"keys\"", "cache \"keys\" of \"w\""),
              HasSubstr("a cache of parameter \"w\", expected of none (state \"keys\")"));
  EXPECT_THAT(message("\"master\" of \"w\"", "\"master\" of \"w\" wire \"int8\""),
              HasSubstr("a master with the wire \"int8\" of blocks of 256, which only secondary "
                        "copies have (state \"master\")"));
  EXPECT_EQ(fault("block 64", "block 48").code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(fault("(0.5, 0, 0)", "(0.5, 0, 0) frozen").code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message("\"m\" of \"w\"", "\"m\" of \"mean\""),
              HasSubstr("a moment1 of \"mean\", which is no parameter (state \"m\")"));
  EXPECT_THAT(fault("wire \"int8 int4\"", "wire \"int9\"").what(),
              HasSubstr("\"int9\" is no wire format"));

  Graph graph = parse_graph(kStates);
  graph[ValueId{0}].state.parameter = "v";
  EXPECT_THAT(error_of([&] { verify(graph); }).what(),
              HasSubstr("a parameter that names \"v\" as its parameter (state \"w\")"));
  graph = parse_graph(kStates);
  graph[ValueId{10}].state.parameter = "w";
  EXPECT_THAT(error_of([&] { verify(graph); }).what(),
              HasSubstr("a buffer that names \"w\" as its parameter (state \"mean\")"));
  graph = parse_graph(kStates);
  graph[ValueId{6}].kind = ValueKind::kCache;
  EXPECT_THAT(error_of([&] { verify(graph); }).what(),
              HasSubstr("value %6 is a cache with the role of a moment1"));
  graph = parse_graph(kStates);
  Graph other = graph;
  other[ValueId{2}].state.wire.block = 128;
  EXPECT_FALSE(equal(graph, other));
}

constexpr std::string_view kOutputs = R"(graph "outputs" {
  %0: f32[] = input "x"
  %1: f32[] = parameter "w" normal(0, 0.02, 0)
  %2: f32[] = parameter "v" normal(0, 0.02, 0) frozen
  output "main" loss = %0
  output "share" statistic = %0
  output "dw" gradient of "w" = %0
  output "dw again" gradient of "w" use 2 = %0
  output "y" = %0
}
)";

TEST(Outputs, HaveTextThatParsesBack) {
  const Graph graph = parse_graph(kOutputs);
  EXPECT_EQ(to_string(graph), kOutputs);
  EXPECT_EQ(graph.outputs[0].kind, OutputKind::kLoss);
  EXPECT_EQ(graph.outputs[1].kind, OutputKind::kStatistic);
  EXPECT_EQ(
      graph.outputs[2],
      (Output{.name = "dw", .value = ValueId{0}, .kind = OutputKind::kGradient, .parameter = "w"}));
  EXPECT_EQ(graph.outputs[3],
            (Output{.name = "dw again",
                    .value = ValueId{0},
                    .kind = OutputKind::kGradient,
                    .parameter = "w",
                    .use = 2}));
  EXPECT_EQ(graph.outputs[4], (Output{.name = "y", .value = ValueId{0}}));
}

TEST(Outputs, AreVerified) {
  const auto fault = [](std::string_view from, std::string_view to) {
    std::string text(kOutputs);
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    const Error error = error_of([&] { parse_graph(text.replace(at, from.size(), to)); });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return std::string(error.what());
  };
  EXPECT_THAT(fault("\"share\" statistic", "\"share\" loss"),
              HasSubstr("output share is a second loss"));
  EXPECT_THAT(fault("\"y\"", "\"y\" gradient of \"w\""),
              HasSubstr("output y is a second gradient of \"w\""));
  EXPECT_THAT(fault("\"y\"", "\"y\" gradient of \"w\" use 2"),
              HasSubstr("output y is a second gradient of \"w\" use 2"));
  EXPECT_THAT(fault("use 2", "use -2"),
              HasSubstr("output dw again is a gradient of use -2, expected 0, or more of a "
                        "gradient"));
  EXPECT_THAT(fault("of \"w\"", "of \"v\""),
              HasSubstr("output dw is a gradient of \"v\", which is no parameter that is trained"));
  EXPECT_THAT(fault("of \"w\"", "of \"x\""),
              HasSubstr("output dw is a gradient of \"x\", which is no parameter that is trained"));
  Graph graph = parse_graph(kOutputs);
  graph.outputs[1].parameter = "w";
  EXPECT_THAT(error_of([&] { verify(graph); }).what(),
              HasSubstr("output share is a statistic of parameter \"w\", expected of none"));
  graph.outputs[1].parameter = "";
  graph.outputs[1].use = 1;
  EXPECT_THAT(error_of([&] { verify(graph); }).what(),
              HasSubstr("output share is a statistic of use 1, expected 0, or more of a gradient"));
  graph.outputs[1].use = 0;
  graph.outputs[1].updates = ValueId{1};
  EXPECT_THAT(error_of([&] { verify(graph); }).what(),
              HasSubstr("output share updates a state and is a statistic"));
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
