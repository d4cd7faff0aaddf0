#include "tessera/passes/graph/slice_tokens.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ir/builder.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

// The operands of attention that are of keys, by their places.
constexpr std::array<std::size_t, 2> kKeysAndValues = {1, 2};
constexpr std::array<std::size_t, 2> kIdsOfKeys = {4, 6};

bool is_of_keys(std::size_t operand) {
  return std::ranges::count(kKeysAndValues, operand) + std::ranges::count(kIdsOfKeys, operand) > 0;
}

// What a value is of the tokens of a sequence.
struct Tokens {
  std::optional<std::size_t> dim = {};  // which of its dims they are
  bool is_sum = false;                  // over them

  bool is_sliced() const { return dim || is_sum; }
};

Graph sources_of(const Graph& graph) {
  Graph sources;
  sources.name = graph.name;
  for (const ValueInfo& value : graph.values) {
    if (value.kind != ValueKind::kResult) {
      sources.add_source(value);
    }
  }
  return sources;
}

class TokenSlices {
 public:
  TokenSlices(const Graph& graph, std::span<const std::int64_t> lengths)
      : graph_(graph),
        builder_(sources_of(graph)),
        tokens_(graph.values.size()),
        ids_(graph.values.size()),
        lengths_(lengths.begin(), lengths.end()) {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < graph.values.size(); ++i) {
      const ValueInfo& value = graph.values[i];
      const auto seq = std::ranges::find(value.type.dims, "seq", &Dim::name);
      if (value.kind == ValueKind::kInput && seq != value.type.dims.end()) {
        tokens_[i].dim = static_cast<std::size_t>(seq - value.type.dims.begin());
        tokens = seq->bound;
      }
    }
    TESSERA_REQUIRE(
        std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) == tokens &&
            std::ranges::all_of(lengths, [](std::int64_t length) { return length > 0; }),
        ErrorCode::kInvalidArgument,
        "{} slices of {} tokens in all, or an empty one, expected {} tokens",
        lengths.size(),
        std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}),
        tokens);
    std::size_t next = 0;
    for (std::size_t i = 0; i < graph.values.size(); ++i) {
      if (graph.values[i].kind != ValueKind::kResult) {
        ids_[i] = ValueId::of(next++);
      }
    }
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      with_context(
          [&] { return format("slices of node {}: {}", i, to_string(*graph.nodes[i].op)); },
          [&] { find_tokens(graph.nodes[i]); });
    }
  }

  Graph run() {
    for (const Node& node : graph_.nodes) {
      if (!is_sliced(node)) {
        add(node, ids_of(node.operands));
      }
    }
    std::vector<ValueId> sums(graph_.outputs.size());
    for (const std::int64_t length : lengths_) {
      add_slice(length);
      add_sums(sums);
      begin_ += length;
      builder_.set_chunk(++slice_);
    }
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      const Output& output = graph_.outputs[i];
      builder_.output(output.name, builder_.handle(sums[i]), output.kind);
    }
    return builder_.take();
  }

 private:
  bool is_sliced(const Node& node) const {
    return std::ranges::any_of(node.results,
                               [&](ValueId value) { return tokens_[value.at()].is_sliced(); });
  }

  [[noreturn]] static void refuse(std::string_view what) {
    fail(ErrorCode::kUnsupported,
         "{}: expected an op that does each token of a sequence for itself, a loss, or causal "
         "attention (pipeline.slices)",
         what);
  }

  // Which factor of the op the tokens of its operands are.
  std::optional<std::string> token_factor(const Node& node, const FactorRule& rule) const {
    const bool is_attention = node.op->get_if<AttentionAttrs>() != nullptr;
    std::optional<std::string> found;
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      const Tokens& tokens = tokens_[node.operands[i].at()];
      if (tokens.is_sum) {
        refuse("it reads a sum over tokens");
      }
      if (!tokens.dim || (is_attention && is_of_keys(i))) {
        continue;
      }
      const std::string& factor = rule.operands[i][*tokens.dim];
      if (found && *found != factor) {
        refuse("its operands have their tokens in several dims");
      }
      found = factor;
    }
    return found;
  }

  void find_tokens(const Node& node) {
    const FactorRule rule = factors(*node.op, graph_.types(node.operands));
    const std::optional<std::string> factor = token_factor(node, rule);
    if (!factor) {
      return;
    }
    const auto names = [&](const FactorRule::Factors& list) {
      return std::ranges::count(list, *factor) > 0;
    };
    const auto* attention = node.op->get_if<AttentionAttrs>();
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      const bool has_tokens = tokens_[node.operands[i].at()].dim.has_value();
      if (attention != nullptr && is_of_keys(i) ? !has_tokens
                                                : !has_tokens && names(rule.operands[i])) {
        refuse("it reads tokens that no input has");
      }
    }
    if (names(rule.whole) || names(rule.max) || names(rule.rewrite) ||
        (attention != nullptr && !attention->causal)) {
      refuse("it reads several tokens at once");
    }
    for (std::size_t r = 0; r < node.results.size(); ++r) {
      Tokens& tokens = tokens_[node.results[r].at()];
      const auto dim = std::ranges::find(rule.results[r], *factor);
      if (dim != rule.results[r].end()) {
        tokens.dim = static_cast<std::size_t>(dim - rule.results[r].begin());
      } else if (names(rule.reduce)) {
        tokens.is_sum = true;
      } else {
        refuse("it drops the tokens");
      }
    }
  }

  std::vector<ValueId> ids_of(const std::vector<ValueId>& values) const {
    std::vector<ValueId> ids;
    for (const ValueId value : values) {
      ids.push_back(ids_[value.at()]);
    }
    return ids;
  }

  // A node of the slice.
  std::vector<ValueId> emit(OpRef op, const std::vector<ValueId>& operands, std::int32_t layer) {
    std::vector<Value> values;
    for (const ValueId operand : operands) {
      values.push_back(builder_.handle(operand));
    }
    builder_.set_layer(layer);
    std::vector<ValueId> results;
    for (const Value& result : builder_.emit(std::move(op), values)) {
      results.push_back(result.id);
    }
    return results;
  }

  // Tokens [begin, end) of an input, without gaps between its rows.
  ValueId part_of_input(ValueId input, std::int64_t begin, std::int64_t end) {
    const ValueId whole = source_of_[input];
    const std::size_t dim = *tokens_[input.at()].dim;
    if (begin == 0 && end == graph_[input].type.dims[dim].bound) {
      return whole;
    }
    const SliceAttrs slice = {
        .dim = static_cast<std::int64_t>(dim), .begin = begin, .size = end - begin};
    const CastAttrs copy = {.dtype = graph_[input].type.dtype};
    return emit(make_op(copy), emit(make_op(slice), {whole}, -1), -1)[0];
  }

  void add_slice(std::int64_t length) {
    end_ = begin_ + length;
    prefixes_of_inputs_.clear();
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      if (graph_.values[i].kind == ValueKind::kInput && tokens_[i].dim) {
        const ValueId input = ValueId::of(i);
        source_of_.try_emplace(input, ids_[i]);
        ids_[i] = part_of_input(input, begin_, end_);
      }
    }
    for (const Node& node : graph_.nodes) {
      if (!is_sliced(node)) {
        continue;
      }
      std::vector<ValueId> operands = ids_of(node.operands);
      if (node.op->get_if<AttentionAttrs>() != nullptr) {
        for (const std::size_t i : kKeysAndValues) {
          operands[i] = rows_so_far(node.operands[i], node.layer);
        }
        for (const std::size_t i : kIdsOfKeys) {
          operands[i] = ids_so_far(node.operands[i]);
        }
      }
      add(node, operands);
    }
  }

  void add(const Node& node, const std::vector<ValueId>& operands) {
    const std::vector<ValueId> results = emit(node.op, operands, node.layer);
    for (std::size_t r = 0; r < results.size(); ++r) {
      ids_[node.results[r].at()] = results[r];
    }
  }

  // The rows of this slice behind those before it, in one tensor.
  ValueId rows_so_far(ValueId rows, std::int32_t layer) {
    const auto [found, is_first] = rows_.try_emplace(rows);
    SlicedRows& so_far = found->second;
    if (!is_first && so_far.slice == slice_) {
      return so_far.rows;
    }
    const CastAttrs copy = {.dtype = graph_[rows].type.dtype};
    const ValueId own = emit(make_op(copy), {ids_[rows.at()]}, layer)[0];
    const ConcatAttrs behind = {.num_operands = 2,
                                .dim = static_cast<std::int64_t>(*tokens_[rows.at()].dim)};
    so_far = {.rows = is_first ? own : emit(make_op(behind), {so_far.rows, own}, layer)[0],
              .slice = slice_};
    return so_far.rows;
  }

  ValueId ids_so_far(ValueId input) {
    if (graph_[input].kind != ValueKind::kInput) {
      refuse("its keys have positions or documents that are no input");
    }
    const auto [found, is_new] = prefixes_of_inputs_.try_emplace(input);
    if (is_new) {
      found->second = begin_ == 0 ? ids_[input.at()] : part_of_input(input, 0, end_);
    }
    return found->second;
  }

  // Of outputs over the slices so far.
  void add_sums(std::vector<ValueId>& sums) {
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      const ValueId value = graph_.outputs[i].value;
      const ValueId own = ids_[value.at()];
      if (!tokens_[value.at()].is_sum || slice_ == 0) {
        TESSERA_CHECK(!tokens_[value.at()].dim, "output {} has tokens", graph_.outputs[i].name);
        sums[i] = own;
      } else {
        sums[i] = emit(make_op(AddAttrs{}), {sums[i], own}, -1)[0];
      }
    }
  }

  struct SlicedRows {
    ValueId rows;
    std::int32_t slice = 0;  // the last of them
  };

  const Graph& graph_;
  GraphBuilder builder_;
  std::vector<Tokens> tokens_;  // by value of `graph_`
  std::vector<ValueId> ids_;    // likewise, of the slice that is made
  std::vector<std::int64_t> lengths_;
  std::map<ValueId, ValueId> source_of_;  // of inputs, the whole
  std::map<ValueId, ValueId> prefixes_of_inputs_;
  std::map<ValueId, SlicedRows> rows_;
  std::int32_t slice_ = 0;
  std::int64_t begin_ = 0;  // of its tokens
  std::int64_t end_ = 0;
};

}  // namespace

Graph slice_tokens(const Graph& graph, std::span<const std::int64_t> lengths) {
  return TokenSlices(graph, lengths).run();
}

}  // namespace tessera
