#include "tessera/passes/stages/share_tied.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/stages/transfer_op.h"

namespace tessera {
namespace {

// The parameter, and its secondary copy, as far as `reads` says.
std::vector<ValueId> states_of(const Graph& graph,
                               const std::string& parameter,
                               const TiedReads& reads) {
  std::vector<ValueId> states;
  if (reads.slices) {
    states.push_back(graph.find_state(parameter, StateRole::kParameter));
  }
  if (reads.secondary) {
    states.push_back(graph.find_state(parameter, StateRole::kSecondary));
  }
  return states;
}

template <class Attrs>
Node transfer(const TiedParameters& tied, std::int64_t from, std::int64_t to, Attrs attrs) {
  const ChannelPlaces places = {.from = from, .to = to, .number = tied.weight_channel};
  return {.op = transfer_op(tied.axes, places, std::move(attrs)),
          .operands = {},
          .results = {},
          .phase = Phase::kStart};
}

// A parameter that is another rank's is none here.
void make_copy(ValueInfo& state) {
  if (state.kind == ValueKind::kParameter) {
    state = {.type = std::move(state.type),
             .kind = ValueKind::kSecondary,
             .name = format("copy.{}", state.name),
             .state = {.parameter = state.name, .role = StateRole::kSecondary}};
  }
}

// How many a channel carries so far, by the rank at its other end: of those from a rank, or to it.
using Carried = std::map<std::int64_t, std::int64_t>;

void send_weights(GraphEdit& edit,
                  const TiedParameters& tied,
                  const TiedParameter& parameter,
                  Carried& sent_to) {
  for (const auto& [reader, reads] : parameter.readers) {
    for (const ValueId state : states_of(edit.graph(), parameter.name, reads)) {
      Node send = transfer(tied, parameter.owner, reader, SendAttrs{.index = sent_to[reader]++});
      send.operands = {state};
      edit.insert(NodeId::of(0), std::move(send));
    }
  }
}

// States of which every reader reads something else.
using Replaced = std::map<ValueId, ValueId>;

void replace_reads(GraphEdit& edit, const Replaced& replaced) {
  const std::vector<Node>& nodes = edit.graph().nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (std::size_t operand = 0; operand < nodes[i].operands.size(); ++operand) {
      if (const auto found = replaced.find(nodes[i].operands[operand]); found != replaced.end()) {
        edit.set_operand(NodeId::of(i), operand, found->second);
      }
    }
  }
}

}  // namespace

Graph share_tied(Graph graph, const TiedParameters& tied, std::int64_t rank) {
  std::vector<std::pair<ValueId, const TiedParameter*>> copies;
  for (const TiedParameter& parameter : tied.parameters) {
    if (const auto reader = parameter.readers.find(rank); reader != parameter.readers.end()) {
      for (const ValueId state : states_of(graph, parameter.name, reader->second)) {
        copies.emplace_back(state, &parameter);
      }
    }
  }
  for (const auto& [state, parameter] : copies) {
    make_copy(graph[state]);
  }
  GraphEdit edit(graph);
  std::vector<Output> outputs = graph.outputs;
  Replaced replaced;
  Carried received_from;
  for (const auto& [state, parameter] : copies) {
    if (parameter->frozen) {
      continue;
    }
    const ValueId received = edit.fresh();
    const std::int64_t owner = parameter->owner;
    Node receive =
        transfer(tied,
                 owner,
                 rank,
                 ReceiveAttrs{.index = received_from[owner]++, .type = graph[state].type});
    receive.results = {received};
    edit.insert(NodeId::of(0), std::move(receive));
    replaced[state] = received;
    outputs.push_back({.name = graph[state].name, .value = received, .updates = state});
  }
  replace_reads(edit, replaced);
  edit.set_outputs(std::move(outputs));
  Carried sent_to;
  for (const TiedParameter& parameter : tied.parameters) {
    if (parameter.owner == rank && !parameter.frozen) {
      send_weights(edit, tied, parameter, sent_to);
    }
  }
  // A parameter whose copy is read is none of this rank's; its own that are frozen stay.
  return without_unread_sources(edit.apply(), [&](const ValueInfo& source) {
    return tied.is_copied(source.state.parameter, rank);
  });
}

}  // namespace tessera
