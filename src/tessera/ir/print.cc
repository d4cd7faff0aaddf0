#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ir/graph.h"
#include "tessera/ir/text_scanner.h"

// The text form of a graph:
//   graph "llama" {
//     %0: i32[batch=1, seq=8] = input "tokens"
//     %1: f32[vocab=64, embed=16] = parameter "embedding" normal(0, 0.02, 3)
//     %3: f32[slice=512] = secondary "secondary.embedding" of "embedding" wire "int8"
//     %4: f32[embed=16] = buffer "mean" normal(0, 0, 0)
//     %2: f32[batch=1, seq=8, embed=16] = embedding(%1, %0) @forward layer 0
//     send {axes="pipeline=2", to=1}(%2) @forward chunk 1
//     output "loss" loss = %9
//     output "gradient.embedding.use1" gradient of "embedding" use 1 = %11
//     output "logits" = %10
//     update %1 = %12
//   }
namespace tessera {
namespace {

std::string join_values(const Graph& graph, std::span<const ValueId> ids, bool with_types) {
  std::string text;
  for (const ValueId id : ids) {
    text += format("{}%{}", text.empty() ? "" : ", ", id.index);
    if (with_types) {
      text += format(": {}{}", to_string(graph[id].type), graph[id].leaves ? " leaves" : "");
    }
  }
  return text;
}

std::string source_text(const Graph& graph, ValueId id) {
  const ValueInfo& value = graph[id];
  const bool has_role = is_state(value.kind);
  std::string text = format("%{}: {} = {} {}{}",
                            id.index,
                            to_string(value.type),
                            has_role ? name(value.state.role) : name(value.kind),
                            quote(value.name),
                            has_role ? owner_text(value.state) : "");
  if (has_role && is_of_model(value.state.role)) {
    text += format(" normal({}, {}, {}){}",
                   value.init.mean,
                   value.init.std,
                   value.init.cut,
                   value.frozen ? " frozen" : "");
  }
  return text;
}

std::string node_text(const Graph& graph, const Node& node) {
  std::string text = format("{}{}{}({}) @{}",
                            join_values(graph, node.results, true),
                            node.results.empty() ? "" : " = ",
                            to_string(*node.op),
                            join_values(graph, node.operands, false),
                            name(node.phase));
  if (node.chunk > 0) {
    text += format(" chunk {}", node.chunk);
  }
  if (node.layer >= 0) {
    text += format(" layer {}", node.layer);
  }
  return text;
}

std::string output_text(const Output& output) {
  if (output.updates) {
    return format("update %{} = %{}", output.updates->index, output.value.index);
  }
  std::string text = format("output {}", quote(output.name));
  if (output.kind != OutputKind::kResult) {
    text += format(" {}", name(output.kind));
  }
  if (output.kind == OutputKind::kGradient) {
    text += format(" of {}{}", quote(output.parameter), use_text(output.use));
  }
  return text + format(" = %{}", output.value.index);
}

constexpr std::array kOutputKinds = {
    OutputKind::kLoss, OutputKind::kStatistic, OutputKind::kGradient};
constexpr std::array kPhases = {
    Phase::kStart, Phase::kForward, Phase::kBackward, Phase::kWeightGradient, Phase::kUpdate};

class GraphParser {
 public:
  GraphParser(std::string_view text, std::span<const OpRef> custom_ops)
      : scanner_(text, custom_ops) {}

  Graph parse() {
    scanner_.expect("graph");
    graph_.name = scanner_.quoted();
    scanner_.expect("{");
    while (!scanner_.accept("}")) {
      statement();
    }
    scanner_.end();
    return std::move(graph_);
  }

 private:
  void statement() {
    if (scanner_.accept("output")) {
      output();
    } else if (scanner_.accept("update")) {
      const ValueId state = scanner_.value();
      scanner_.expect("=");
      const ValueId content = scanner_.value();
      TESSERA_REQUIRE(state.valid() && state.at() < graph_.values.size(),
                      ErrorCode::kInvalidArgument,
                      "update of %{}, which is not defined",
                      state.index);
      graph_.outputs.push_back({.name = graph_[state].name, .value = content, .updates = state});
    } else {
      definition();
    }
  }

  void output() {
    Output result{.name = scanner_.quoted(), .value = {}};
    const auto* const kind = std::ranges::find_if(
        kOutputKinds, [&](OutputKind known) { return scanner_.accept(name(known)); });
    result.kind = kind == kOutputKinds.end() ? OutputKind::kResult : *kind;
    if (result.kind == OutputKind::kGradient) {
      scanner_.expect("of");
      result.parameter = scanner_.quoted();
      result.use = parse_use(scanner_);
    }
    scanner_.expect("=");
    result.value = scanner_.value();
    graph_.outputs.push_back(std::move(result));
  }

  // What a line defines.
  using Results = std::vector<std::pair<ValueId, ValueInfo>>;

  // Values are numbered in any order, so each is put at its own place.
  void place(ValueId id, ValueInfo value) {
    if (!id.valid() || id.index > (1 << 28)) {
      scanner_.fail_expected("a value number");
    }
    if (id.at() >= graph_.values.size()) {
      graph_.values.resize(id.at() + 1);
    }
    graph_[id] = std::move(value);
  }

  void definition() {
    Results results;
    if (!scanner_.comes("%")) {  // an op without results
      node(results);
      return;
    }
    do {
      const ValueId id = scanner_.value();
      scanner_.expect(":");
      results.emplace_back(id, ValueInfo{.type = scanner_.tensor_type()});
      results.back().second.leaves = scanner_.accept("leaves");
    } while (scanner_.accept(","));
    scanner_.expect("=");
    for (const ValueKind kind : {ValueKind::kInput, ValueKind::kScalar}) {
      if (scanner_.accept(name(kind))) {
        auto& [id, facts] = results[0];
        facts.kind = kind;
        facts.name = scanner_.quoted();
        place(id, std::move(facts));
        return;
      }
    }
    if (const auto role = accept_role(scanner_)) {
      state(*role, std::move(results[0]));
      return;
    }
    node(results);
  }

  void state(StateRole role, std::pair<ValueId, ValueInfo> defined) {
    auto& [id, value] = defined;
    value.kind = kind_of(role);
    value.name = scanner_.quoted();
    value.state = parse_owner(scanner_, role, value.name);
    if (is_of_model(role)) {
      scanner_.expect("normal");
      scanner_.expect("(");
      value.init.mean = scanner_.number();
      scanner_.expect(",");
      value.init.std = scanner_.number();
      scanner_.expect(",");
      value.init.cut = scanner_.number();
      scanner_.expect(")");
      value.frozen = role == StateRole::kParameter && scanner_.accept("frozen");
    }
    place(id, std::move(value));
  }

  void node(Results& results) {
    Node node{.op = parse_op(scanner_), .operands = {}, .results = {}};
    scanner_.expect("(");
    while (!scanner_.accept(")")) {
      if (!node.operands.empty()) {
        scanner_.expect(",");
      }
      node.operands.push_back(scanner_.value());
    }
    scanner_.expect("@");
    node.phase = phase();
    node.chunk = scanner_.accept("chunk") ? scanner_.index() : 0;
    if (scanner_.accept("layer")) {
      node.layer = scanner_.index();
    }
    const NodeId id = NodeId::of(graph_.nodes.size());
    for (auto& [result, facts] : results) {
      facts.producer = id;
      facts.result_index = static_cast<std::int32_t>(node.results.size());
      place(result, std::move(facts));
      node.results.push_back(result);
    }
    graph_.nodes.push_back(std::move(node));
  }

  Phase phase() {
    for (const Phase candidate : kPhases) {
      if (scanner_.accept(name(candidate))) {
        return candidate;
      }
    }
    scanner_.fail_expected("a phase");
  }

  TextScanner scanner_;
  Graph graph_;
};

}  // namespace

std::string to_string(const Graph& graph) {
  std::string text = format("graph {} {{\n", quote(graph.name));
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    if (graph.values[i].kind != ValueKind::kResult) {
      text += format("  {}\n", source_text(graph, ValueId::of(i)));
    }
  }
  for (const Node& node : graph.nodes) {
    text += format("  {}\n", node_text(graph, node));
  }
  for (const Output& output : graph.outputs) {
    text += format("  {}\n", output_text(output));
  }
  return text + "}\n";
}

Graph parse_graph(std::string_view text, std::span<const OpRef> custom_ops) {
  Graph graph = GraphParser(text, custom_ops).parse();
  verify(graph);
  return graph;
}

}  // namespace tessera
