#include "tessera/passes/stages/cut_stages.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/stages/assign_stages.h"
#include "tessera/passes/stages/transfer_op.h"

namespace tessera {
namespace {

// What goes over the boundary between a stage and the next one, in the order of definition.
struct Boundary {
  std::set<ValueId> forward;
  std::set<ValueId> backward;
};

class StageCut {
 public:
  StageCut(const Graph& graph, const PipelineCut& cut, std::int64_t rank)
      : graph_(graph),
        cut_(cut),
        rank_(rank),
        stages_(assign_stages(graph, cut.layers)),
        boundaries_(cut.layers.size() - 1),
        edit_(graph) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const ValueId operand : graph.nodes[i].operands) {
        if (const NodeId producer = graph[operand].producer; producer.valid()) {
          cross(operand, stages_[producer.at()], stages_[i]);
        }
      }
    }
  }

  Graph run() {
    const std::vector<std::int32_t> chunks = chunks_of_nodes();
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i] == kEveryStage || is_own(stages_[i])) {
        made_.insert(graph_.nodes[i].results.begin(), graph_.nodes[i].results.end());
        edit_.set_chunk(NodeId::of(i), chunks[i]);
      } else {
        edit_.remove(NodeId::of(i));
      }
    }
    for (std::size_t boundary = 0; boundary < boundaries_.size(); ++boundary) {
      const auto before = static_cast<std::int32_t>(boundary);
      if (is_own(before) != is_own(before + 1)) {
        add_transfers(boundary, true);
        add_transfers(boundary, false);
      }
    }
    edit_.set_outputs(outputs());
    return without_unread_sources(edit_.apply());
  }

 private:
  std::int64_t rank_of(std::int32_t stage) const {
    return cut_.rank_of_stage[static_cast<std::size_t>(stage)];
  }

  bool is_own(std::int32_t stage) const { return rank_of(stage) == rank_; }

  // Of a stage of this rank, by its place among these.
  std::int32_t chunk_of(std::int32_t stage, std::int32_t slice) const {
    const auto place =
        std::count(cut_.rank_of_stage.begin(), cut_.rank_of_stage.begin() + stage, rank_);
    return static_cast<std::int32_t>(place * cut_.num_slices()) + slice;
  }

  std::int32_t slice_of(ValueId value) const {
    return graph_.nodes[graph_[value].producer.at()].chunk;
  }

  // Of this rank's nodes. Those of every stage are in the chunk of their first reader: forwards of
  // a microbatch come to the chunks in rising order, backwards in falling order.
  std::vector<std::int32_t> chunks_of_nodes() const {
    std::vector<std::int32_t> chunks(stages_.size(), 0);
    std::vector<bool> is_read(stages_.size(), false);
    for (std::size_t i = stages_.size(); i-- > 0;) {
      if (stages_[i] != kEveryStage && !is_own(stages_[i])) {
        continue;
      }
      chunks[i] =
          stages_[i] == kEveryStage ? chunks[i] : chunk_of(stages_[i], graph_.nodes[i].chunk);
      for (const ValueId operand : graph_.nodes[i].operands) {
        const NodeId producer = graph_[operand].producer;
        if (!producer.valid() || stages_[producer.at()] != kEveryStage) {
          continue;
        }
        std::int32_t& chunk = chunks[producer.at()];
        const bool is_forward = graph_.nodes[producer.at()].phase == Phase::kForward;
        chunk = !is_read[producer.at()] ? chunks[i]
                : is_forward            ? std::min(chunk, chunks[i])
                                        : std::max(chunk, chunks[i]);
        is_read[producer.at()] = true;
      }
    }
    return chunks;
  }

  // Notes which boundaries a value of stage `from` crosses for a reader in stage `to`. A rank gets
  // a value at the first of its stages behind `from`, if at all, and keeps it for the later ones.
  void cross(ValueId value, std::int32_t from, std::int32_t to) {
    if (from == kEveryStage || from == to) {
      return;
    }
    TESSERA_CHECK(to != kEveryStage, "what every stage does reads %{}", value.index);
    const bool is_forward = graph_.nodes[graph_[value].producer.at()].phase == Phase::kForward;
    TESSERA_REQUIRE(
        is_forward == (from < to),
        ErrorCode::kUnsupported,
        "a {} value of stage {} of the pipeline is read in stage {}: expected values of "
        "forward to be read in later stages, those of backward in earlier ones",
        is_forward ? "forward" : "backward",
        from,
        to);
    const std::int32_t step = is_forward ? 1 : -1;
    const auto first_of_rank = [&](std::int32_t of) {
      std::int32_t stage = from;
      while (rank_of(stage) != rank_of(of)) {
        stage += step;
      }
      return stage;
    };
    for (std::int32_t stage = first_of_rank(to); stage != from;) {
      const std::int32_t before = stage - step;
      Boundary& crossed = boundaries_[static_cast<std::size_t>(std::min(before, stage))];
      (is_forward ? crossed.forward : crossed.backward).insert(value);
      stage = first_of_rank(before);
    }
  }

  // Sends right after the last value is made, receives right before the first is read.
  void add_transfers(std::size_t boundary, bool is_forward) {
    const std::set<ValueId>& values =
        is_forward ? boundaries_[boundary].forward : boundaries_[boundary].backward;
    const bool is_first = is_own(static_cast<std::int32_t>(boundary));  // of the two stages
    const bool sends = is_first == is_forward;
    const std::int64_t first = cut_.rank_of_stage[boundary];
    const std::int64_t second = cut_.rank_of_stage[boundary + 1];
    const ChannelPlaces places = {
        .from = is_forward ? first : second,
        .to = is_forward ? second : first,
        .number = 2 * static_cast<std::int64_t>(boundary) + (is_forward ? 0 : 1)};
    std::int64_t index = 0;
    for (const ValueId value : values) {
      const NodeId position =
          sends ? after_last_producer(values, slice_of(value)) : before_first(is_forward);
      Node node = {
          .op = sends ? transfer_op(cut_.axes, places, SendAttrs{.index = index})
                      : transfer_op(cut_.axes,
                                    places,
                                    ReceiveAttrs{.index = index, .type = graph_[value].type}),
          .operands = {},
          .results = {},
          .phase = is_forward ? Phase::kForward : Phase::kBackward,
          .chunk =
              chunk_of(static_cast<std::int32_t>(boundary) + (is_first ? 0 : 1), slice_of(value))};
      if (sends) {
        node.operands = {value};
      } else {
        node.results = {value};
        made_.insert(value);
      }
      edit_.insert(position, std::move(node));
      ++index;
    }
  }

  // Of those of a slice.
  NodeId after_last_producer(const std::set<ValueId>& values, std::int32_t slice) const {
    std::size_t last = 0;
    for (const ValueId value : values) {
      if (slice_of(value) == slice) {
        last = std::max(last, graph_[value].producer.at());
      }
    }
    return NodeId::of(last + 1);
  }

  // Of forward, or of all that follows it.
  NodeId before_first(bool is_forward) const {
    std::size_t first = 0;
    while (!is_forward && first < graph_.nodes.size() &&
           graph_.nodes[first].phase <= Phase::kForward) {
      ++first;
    }
    return NodeId::of(first);
  }

  std::vector<Output> outputs() {
    std::vector<Output> outputs;
    for (const Output& output : graph_.outputs) {
      if (made_.contains(output.value) || !graph_[output.value].producer.valid()) {
        outputs.push_back(output);
      } else if (output.kind != OutputKind::kGradient) {
        edit_.insert(graph_[output.value].producer,
                     {.op = make_op(FillAttrs{.type = graph_[output.value].type}),
                      .operands = {},
                      .results = {output.value},
                      .phase = Phase::kForward});
        made_.insert(output.value);
        outputs.push_back(output);
      }
    }
    return outputs;
  }

  const Graph& graph_;
  const PipelineCut& cut_;
  std::int64_t rank_;
  std::vector<std::int32_t> stages_;  // by node
  std::vector<Boundary> boundaries_;  // after each stage but the last
  std::set<ValueId> made_;            // on this rank
  GraphEdit edit_;
};

}  // namespace

Graph cut_stages(const Graph& graph, const PipelineCut& cut, std::int64_t rank) {
  return StageCut(graph, cut, rank).run();
}

}  // namespace tessera
