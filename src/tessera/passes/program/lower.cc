
#include "tessera/passes/program/lower.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/join_accumulation.h"
#include "tessera/passes/memory/storage.h"

namespace tessera {
namespace {

Action action_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return Action::kForward;
    case Phase::kBackward:
    case Phase::kWeightGradient:
      return Action::kBackward;
    case Phase::kUpdate:
      return Action::kUpdate;
  }
  return Action::kUpdate;
}

CodeKind kind_of(const Node& node) {
  return node.op->get_if<ReceiveAttrs>() != nullptr ? CodeKind::kReceive
         : node.op->get_if<SendAttrs>() != nullptr  ? CodeKind::kSend
                                                    : CodeKind::kWork;
}

Code code_of(const Node& node) {
  return {.action = action_of(node.phase), .kind = kind_of(node)};
}

constexpr std::array kActions = {Action::kForward, Action::kBackward, Action::kUpdate};

bool is_view(const Node& node) {
  return info(*node.op).view != ViewKind::kNone;
}

// The place of every node; views, which are no instructions, take the place of what follows.
std::vector<Place> node_places(const Graph& graph) {
  std::map<Code, std::int32_t> next;
  std::vector<Place> places;
  for (const Node& node : graph.nodes) {
    const Code code = code_of(node);
    std::int32_t& index = next[code];
    places.push_back({.code = code, .instruction = index});
    index += is_view(node) ? 0 : 1;
  }
  return places;
}

class Lowering {
 public:
  Lowering(const Graph& graph, const LowerOptions& options)
      : graph_(graph), options_(options), storage_(assign_storage(graph)) {}

  Program run() {
    program_.name = graph_.name;
    program_.num_microbatches = options_.num_microbatches;
    make_buffers();
    make_bindings();
    make_segments();
    return std::move(program_);
  }

 private:
  // What one microbatch leaves for its later calls, or gets from the host, may be there at the same
  // time as another's.
  void make_pools() {
    const auto add = [&](std::string_view pool_name, const auto& is_in) {
      const PoolId pool = PoolId::of(program_.pools.size());
      for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
        program_.buffers[i].pool = is_in(i) ? pool : program_.buffers[i].pool;
      }
      if (std::ranges::any_of(program_.buffers, [&](const Buffer& b) { return b.pool == pool; })) {
        program_.pools.push_back({.name = std::string(pool_name)});
      }
    };
    add("inputs", [&](std::size_t i) {
      return storage_.buffers[i].category == Category::kInput && !storage_.buffers[i].is_scalar;
    });
    add("stash", [&](std::size_t i) {
      const Buffer& buffer = program_.buffers[i];
      const auto is_work = [](const Place& place) { return place.code.kind == CodeKind::kWork; };
      return !buffer.persistent && buffer.begin.code != buffer.end.code && is_work(buffer.begin) &&
             is_work(buffer.end);
    });
  }

  void make_buffers() {
    for (const StorageBuffer& buffer : storage_.buffers) {
      program_.buffers.push_back({.name = buffer.name,
                                  .category = buffer.category,
                                  .bytes = buffer.bytes,
                                  .persistent = buffer.persistent});
    }
    const std::vector<Place> places = node_places(graph_);
    std::vector<bool> seen(program_.buffers.size(), false);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (is_view(graph_.nodes[i])) {
        continue;
      }
      const auto touch = [&](const std::vector<ValueId>& values) {
        for (const ValueId value : values) {
          const std::size_t at = storage_.tensors[value.at()].buffer.at();
          Buffer& buffer = program_.buffers[at];
          buffer.begin = seen[at] ? buffer.begin : places[i];
          buffer.end = places[i];
          seen[at] = true;
        }
      };
      touch(graph_.nodes[i].operands);
      touch(graph_.nodes[i].results);
    }
    // The host reads outputs after the step.
    for (const Output& output : graph_.outputs) {
      program_.buffers[storage_.tensors[output.value.at()].buffer.at()].persistent = true;
    }
    for (Buffer& buffer : program_.buffers) {
      if (buffer.persistent) {
        buffer.begin = buffer.end = {};
      }
    }
    make_pools();
  }

  const TensorRef& tensor(ValueId value) const { return storage_.tensors[value.at()]; }

  void make_bindings() {
    const auto bind = [&](ValueKind kind, std::vector<Binding>& bindings) {
      for (const ValueId value : graph_.sources(kind)) {
        bindings.push_back({.name = graph_[value].name, .tensor = tensor(value)});
      }
    };
    bind(ValueKind::kInput, program_.inputs);
    bind(ValueKind::kScalar, program_.scalars);
    for (const ValueKind kind : {ValueKind::kParameter,
                                 ValueKind::kSecondary,
                                 ValueKind::kGradient,
                                 ValueKind::kOptimizer,
                                 ValueKind::kCache,
                                 ValueKind::kBuffer}) {
      for (const ValueId value : graph_.sources(kind)) {
        program_.states.push_back(
            {{.name = graph_[value].name, .tensor = tensor(value)}, graph_[value].state});
      }
    }
    for (const Output& output : graph_.outputs) {
      if (!output.updates) {
        program_.outputs.push_back({.name = output.name, .tensor = tensor(output.value)});
      }
    }
  }

  // One segment an action, and a second one for the first microbatch where that differs; and one
  // for its receives and one for its sends, which add_transfers() calls.
  void make_segments() {
    const Graph first = options_.num_microbatches > 1 ? start_accumulators(graph_) : graph_;
    std::map<Action, SegmentId> start;
    std::map<Action, SegmentId> next;
    for (const Action action : kActions) {
      Segment later = make_segment(graph_, {.action = action});
      if (later.instructions.empty() && !has_transfers(action)) {
        continue;
      }
      Segment begin = make_segment(first, {.action = action});
      const bool differs = !same_ops(begin, later);
      next[action] = add_segment(std::move(later));
      start[action] = next[action];
      if (differs) {
        begin.name += "_first";
        start[action] = add_segment(std::move(begin));
      }
    }
    make_transfers();
    for (std::int32_t m = 0; m < options_.num_microbatches; ++m) {
      for (const Action action : {Action::kForward, Action::kBackward}) {
        if (next.contains(action)) {
          program_.calls.push_back(
              {.segment = m == 0 ? start[action] : next[action], .microbatch = m});
        }
      }
    }
    if (next.contains(Action::kUpdate)) {
      program_.calls.push_back({.segment = next[Action::kUpdate]});
    }
  }

  void make_transfers() {
    for (const Action action : {Action::kForward, Action::kBackward}) {
      for (const CodeKind kind : {CodeKind::kReceive, CodeKind::kSend}) {
        Segment transfers = make_segment(graph_, {.action = action, .kind = kind});
        if (!transfers.instructions.empty()) {
          add_segment(std::move(transfers));
        }
      }
    }
  }

  // Then the action is called, even where there is nothing but what passes through.
  bool has_transfers(Action action) const {
    return std::ranges::any_of(graph_.nodes, [&](const Node& node) {
      return action_of(node.phase) == action && kind_of(node) != CodeKind::kWork;
    });
  }

  SegmentId add_segment(Segment segment) {
    program_.segments.push_back(std::move(segment));
    return SegmentId::of(program_.segments.size() - 1);
  }

  static bool same_ops(const Segment& a, const Segment& b) {
    return std::equal(
        a.instructions.begin(),
        a.instructions.end(),
        b.instructions.begin(),
        b.instructions.end(),
        [](const Instruction& x, const Instruction& y) { return equal(*x.op, *y.op); });
  }

  Segment make_segment(const Graph& graph, const Code& code) {
    Segment segment{.name = to_string(code), .code = code, .instructions = {}};
    for (const Node& node : graph.nodes) {
      if (code_of(node) != code || is_view(node)) {
        continue;
      }
      const Place here{.code = code,
                       .instruction = static_cast<std::int32_t>(segment.instructions.size())};
      segment.instructions.push_back(make_instruction(node, here));
    }
    return segment;
  }

  Instruction make_instruction(const Node& node, Place here) {
    Instruction instruction{.op = node.op, .operands = {}, .results = {}, .layer = node.layer};
    std::vector<View> operands;
    std::vector<View> results;
    for (const ValueId value : node.operands) {
      instruction.operands.push_back(tensor(value));
      operands.push_back(view_of(tensor(value)));
    }
    for (const ValueId value : node.results) {
      instruction.results.push_back(tensor(value));
      results.push_back(view_of(tensor(value)));
    }
    if (options_.workspace_bytes) {
      const std::int64_t bytes = options_.workspace_bytes(*node.op, operands, results);
      instruction.workspace = bytes > 0 ? workspace(here, bytes) : BufferId{};
    }
    return instruction;
  }

  // Variants of a segment share the workspace of a place.
  BufferId workspace(Place here, std::int64_t bytes) {
    const auto [found, is_new] = workspaces_.try_emplace({here.code, here.instruction},
                                                         BufferId::of(program_.buffers.size()));
    if (is_new) {
      program_.buffers.push_back({.name = workspace_name(here),
                                  .category = Category::kWorkspace,
                                  .begin = here,
                                  .end = here});
    }
    Buffer& buffer = program_.buffers[found->second.at()];
    buffer.bytes = std::max(buffer.bytes, bytes);
    return found->second;
  }

  const Graph& graph_;
  const LowerOptions& options_;
  Storage storage_;
  Program program_;
  std::map<std::pair<Code, std::int32_t>, BufferId> workspaces_;  // by place
};

}  // namespace

std::string workspace_name(Place place) {
  return format("workspace {} {}", to_string(place.code), place.instruction);
}

Program lower(const Graph& graph, const LowerOptions& options) {
  return Lowering(graph, options).run();
}

}  // namespace tessera
