
#include "tessera/passes/program/lower.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/graph/join_accumulation.h"
#include "tessera/passes/memory/storage.h"

namespace tessera {
namespace {

Action action_of(Phase phase, bool splits_backward) {
  switch (phase) {
    case Phase::kStart:
      return Action::kStart;
    case Phase::kForward:
      return Action::kForward;
    case Phase::kBackward:
      return Action::kBackward;
    case Phase::kWeightGradient:
      return splits_backward ? Action::kWeightGradient : Action::kBackward;
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

// By node.
std::vector<Code> find_codes(const Graph& graph, bool splits_backward) {
  std::vector<Code> codes;
  for (const Node& node : graph.nodes) {
    codes.push_back({.action = action_of(node.phase, splits_backward),
                     .chunk = node.chunk,
                     .kind = kind_of(node)});
  }
  return codes;
}

// The works of a step as a microbatch comes to them, those of which there are only transfers, too.
std::vector<Code> find_works(const std::vector<Code>& codes) {
  std::int32_t num_chunks = 0;
  std::set<Code> found;
  for (Code code : codes) {
    num_chunks = std::max(num_chunks, code.chunk + 1);
    code.kind = CodeKind::kWork;
    found.insert(code);
  }
  std::vector<Code> works;
  for (const Action action : kActions) {
    for (std::int32_t i = 0; i < num_chunks; ++i) {
      const bool rises = action == Action::kStart || action == Action::kForward;
      const std::int32_t chunk = rises ? i : num_chunks - 1 - i;
      if (const Code code = {.action = action, .chunk = chunk}; found.contains(code)) {
        works.push_back(code);
      }
    }
  }
  return works;
}

// The place of every node; views, which are no instructions, take the place of what follows.
std::vector<Place> node_places(const Graph& graph, const std::vector<Code>& codes) {
  std::map<Code, std::int32_t> next;
  std::vector<Place> places;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    std::int32_t& index = next[codes[i]];
    places.push_back({.code = codes[i], .instruction = index});
    index += is_view(graph.nodes[i]) ? 0 : 1;
  }
  return places;
}

class Lowering {
 public:
  Lowering(const Graph& graph, const LowerOptions& options)
      : graph_(graph),
        options_(options),
        codes_(find_codes(graph, options.splits_backward)),
        storage_(assign_storage(graph)) {}

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
    std::map<std::string, PoolId> pools;
    const auto put = [&](Buffer& buffer, const std::string& pool_name) {
      const auto [pool, is_new] = pools.try_emplace(pool_name, PoolId::of(program_.pools.size()));
      if (is_new) {
        program_.pools.push_back({.name = pool_name});
      }
      buffer.pool = pool->second;
    };
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      if (storage_.buffers[i].category == Category::kInput && !storage_.buffers[i].is_scalar) {
        put(program_.buffers[i], "inputs");
      } else if (is_output_of_each(BufferId::of(i))) {
        put(program_.buffers[i], "outputs");
      }
    }
    for (Buffer& buffer : program_.buffers) {
      const Code& begin = buffer.begin.code;
      const Code& end = buffer.end.code;
      if (!buffer.persistent && begin != end && begin.kind == CodeKind::kWork &&
          end.kind == CodeKind::kWork) {
        put(buffer, pool_between(begin, end));
      }
    }
  }

  static std::string pool_between(const Code& begin, const Code& end) {
    if (begin.action == Action::kForward && end.action == Action::kBackward &&
        begin.chunk == end.chunk) {
      return end.chunk == 0 ? "stash" : format("stash.{}", end.chunk);
    }
    return format("{} to {}", to_string(begin), to_string(end));
  }

  // Whether each microbatch has an output there.
  bool is_output_of_each(BufferId buffer) const {
    return !options_.is_summed && options_.num_microbatches > 1 &&
           std::ranges::any_of(graph_.outputs, [&](const Output& output) {
             return !output.updates && tensor(output.value).buffer == buffer;
           });
  }

  void make_buffers() {
    for (const StorageBuffer& buffer : storage_.buffers) {
      program_.buffers.push_back({.name = buffer.name,
                                  .category = buffer.category,
                                  .bytes = buffer.bytes,
                                  .persistent = buffer.persistent});
    }
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      Buffer& buffer = program_.buffers[storage_.tensors[i].buffer.at()];
      buffer.leaves = buffer.leaves || graph_.values[i].leaves;
    }
    const std::vector<Place> places = node_places(graph_, codes_);
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
      buffer.persistent = buffer.persistent || is_of_whole_step(buffer);
      if (buffer.persistent) {
        buffer.begin = buffer.end = {};
      }
    }
    make_pools();
  }

  // Made at its start for all microbatches.
  static bool is_of_whole_step(const Buffer& buffer) {
    const Code& begin = buffer.begin.code;
    return begin.action == Action::kStart && begin.kind == CodeKind::kWork &&
           buffer.end.code.action != Action::kStart;
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

  // One segment an action and chunk, and a second one for the first microbatch where that differs;
  // and one for its receives and one for its sends, which add_transfers() calls.
  void make_segments() {
    const Graph first = adds_up() ? start_accumulators(graph_) : graph_;
    const std::vector<Code> works = find_works(codes_);
    std::map<Code, SegmentId> start;
    std::map<Code, SegmentId> next;
    for (const Code& code : works) {
      Segment later = make_segment(graph_, code);
      if (later.instructions.empty() && (code.action == Action::kStart || !has_transfers(code))) {
        continue;
      }
      Segment begin = make_segment(first, code);
      const bool differs = !same_ops(begin, later);
      if (differs && options_.num_microbatches == 1) {
        next[code] = start[code] = add_segment(std::move(begin));
        continue;
      }
      next[code] = add_segment(std::move(later));
      start[code] = next[code];
      if (differs) {
        begin.name += "_first";
        start[code] = add_segment(std::move(begin));
      }
    }
    make_transfers(works);
    list_calls(works, start, next);
  }

  // Whether several microbatches, or slices of one, add to a state.
  bool adds_up() const {
    return std::ranges::any_of(graph_.outputs, [&](const Output& output) {
      return output.updates && graph_[*output.updates].kind == ValueKind::kGradient;
    });
  }

  // `start`: what the first microbatch calls of a work, `next`: what the others do.
  void list_calls(const std::vector<Code>& works,
                  const std::map<Code, SegmentId>& start,
                  const std::map<Code, SegmentId>& next) {
    for (const Code& code : works) {
      if (next.contains(code) && code.action == Action::kStart) {
        program_.calls.push_back({.segment = next.at(code)});
      }
    }
    for (std::int32_t m = 0; m < options_.num_microbatches; ++m) {
      for (const Code& code : works) {
        if (next.contains(code) && is_of_microbatches(code.action)) {
          program_.calls.push_back(
              {.segment = m == 0 ? start.at(code) : next.at(code), .microbatch = m});
        }
      }
    }
    const auto update = next.find({.action = Action::kUpdate});
    const std::int64_t num_updates = options_.is_summed ? 1 : options_.num_microbatches;
    for (std::int32_t m = 0; m < num_updates && update != next.end(); ++m) {
      program_.calls.push_back({.segment = update->second, .microbatch = m});
    }
  }

  void make_transfers(const std::vector<Code>& works) {
    for (const Code& work : works) {
      for (const CodeKind kind : {CodeKind::kReceive, CodeKind::kSend}) {
        Segment transfers =
            make_segment(graph_, {.action = work.action, .chunk = work.chunk, .kind = kind});
        if (!transfers.instructions.empty()) {
          add_segment(std::move(transfers));
        }
      }
    }
  }

  // Then the work is called, even where there is nothing but what passes through.
  bool has_transfers(const Code& work) const {
    return std::ranges::any_of(codes_, [&](const Code& code) {
      return code.action == work.action && code.chunk == work.chunk && code.kind != CodeKind::kWork;
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
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node& node = graph.nodes[i];
      if (codes_[i] != code || is_view(node)) {
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
  std::vector<Code> codes_;  // by node
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
