#include "tessera/passes/memory/recompute_choices.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "tessera/ops/op.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/memory/recompute_layers.h"

namespace tessera {
namespace {

// What a layer computes in forward, of all its slices, views left out: what reads a view reads what
// it is a view of.
struct LayerStep {
  std::string name;
  std::vector<std::size_t> reads = {};  // steps before it
  std::int64_t bytes = 0;
  double seconds = 0.0;
  bool is_kept = false;              // in any case
  bool is_read = false;              // by backward
  std::optional<unsigned> bit = {};  // of a set of what is kept
};

// Gathers are repeated in backward in any case, where it needs them.
enum class Talk : std::uint8_t { kNone, kGathers, kFolds };

Talk talk_of(const Graph& graph, const Node& node) {
  const Collectives uses = collectives(*node.op, graph.types(node.operands));
  if (uses.empty()) {
    return Talk::kNone;
  }
  const bool gathers = std::ranges::all_of(uses, [](const CollectiveUse& use) {
    return use.kind == CollectiveKind::kAllGather || use.kind == CollectiveKind::kRingShift;
  });
  return gathers ? Talk::kGathers : Talk::kFolds;
}

// The steps of each layer of a graph, in order.
class LayerSteps {
 public:
  LayerSteps(const Graph& graph, const NodeSeconds& seconds)
      : graph_(graph), step_of_(graph.values.size()), names_(recompute_names(graph)) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node& node = graph.nodes[i];
      if (node.layer < 0) {
        continue;
      }
      if (node.phase == Phase::kForward) {
        add_forward(i, seconds);
      } else if (is_of_backward(node)) {
        mark_read(node);
      }
    }
  }

  std::map<std::int32_t, std::vector<LayerStep>>& layers() { return layers_; }

 private:
  struct Place {
    std::int32_t layer = -1;
    std::int32_t chunk = 0;
    std::size_t step = 0;
  };

  void add_forward(std::size_t index, const NodeSeconds& seconds) {
    const Node& node = graph_.nodes[index];
    std::vector<std::size_t> reads;
    for (const ValueId operand : node.operands) {
      if (const auto& place = step_of_[operand.at()]; is_own(place, node)) {
        reads.push_back(place->step);
      }
    }
    if (is_view(node)) {
      const auto& place = step_of_[node.operands.front().at()];
      for (const ValueId result : node.results) {
        step_of_[result.at()] = place;
      }
      return;
    }
    const Talk talk = talk_of(graph_, node);
    LayerStep step = {.name = names_[index],
                      .reads = std::move(reads),
                      .seconds = talk == Talk::kNone ? seconds(graph_, node) : 0.0,
                      .is_kept = talk == Talk::kFolds || is_random(node)};
    const bool is_again = talk == Talk::kGathers || is_passing(graph_, node);
    std::vector<LayerStep>& layer = layers_[node.layer];
    for (const ValueId result : node.results) {
      step.bytes += is_again ? 0 : graph_[result].type.num_bytes();
      step_of_[result.at()] = Place{.layer = node.layer, .chunk = node.chunk, .step = layer.size()};
    }
    layer.push_back(std::move(step));
  }

  // What another slice made is kept for this one.
  static bool is_own(const std::optional<Place>& place, const Node& node) {
    return place && place->layer == node.layer && place->chunk == node.chunk;
  }

  void mark_read(const Node& node) {
    for (const ValueId operand : node.operands) {
      if (const auto& place = step_of_[operand.at()]; is_own(place, node)) {
        layers_[node.layer][place->step].is_read = true;
      }
    }
  }

  const Graph& graph_;
  std::vector<std::optional<Place>> step_of_;  // by value
  std::vector<std::string> names_;
  std::map<std::int32_t, std::vector<LayerStep>> layers_;
};

using KeptSet = std::uint32_t;

struct SetCost {
  KeptSet set = 0;
  std::int64_t bytes = 0;
  double seconds = 0.0;
};

// What backward repeats and what it finds, where the steps of a set are kept.
class SetCosts {
 public:
  explicit SetCosts(const std::vector<LayerStep>& steps) : steps_(steps), needed_(steps.size()) {}

  SetCost of(KeptSet set) {
    SetCost cost = {.set = set};
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      needed_[i] = steps_[i].is_read;
    }
    for (std::size_t i = steps_.size(); i-- > 0;) {
      const LayerStep& step = steps_[i];
      if (!needed_[i]) {
        continue;
      }
      if (step.is_kept || (step.bit && (set >> *step.bit & 1U) != 0)) {
        cost.bytes += step.bytes;
        continue;
      }
      cost.seconds += step.seconds;
      for (const std::size_t read : step.reads) {
        needed_[read] = true;
      }
    }
    return cost;
  }

  // By step, of the last set.
  const std::vector<bool>& needed() const { return needed_; }

 private:
  const std::vector<LayerStep>& steps_;
  std::vector<bool> needed_;
};

// Gives a bit to each of those names whose steps are worth most bytes, and one to all others; gives
// the names of each bit.
std::vector<std::vector<std::string>> choose_bits(std::vector<LayerStep>& steps) {
  SetCosts costs(steps);
  costs.of(0);
  std::map<std::string, std::int64_t> bytes;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (costs.needed()[i] && !steps[i].is_kept && steps[i].bytes > 0) {
      bytes[steps[i].name] += steps[i].bytes;
    }
  }
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [name, count] : bytes) {
    order.emplace_back(-count, name);
  }
  std::ranges::sort(order);
  std::vector<std::vector<std::string>> names(std::min(order.size(), kMostChosen));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t bit = std::min(i, kMostChosen - 1);
    for (LayerStep& step : steps) {
      if (step.name == order[i].second) {
        step.bit = static_cast<unsigned>(bit);
      }
    }
    names[bit].push_back(order[i].second);
  }
  return names;
}

std::vector<KeptChoice> front_of(std::vector<LayerStep>& steps) {
  const std::vector<std::vector<std::string>> names = choose_bits(steps);
  SetCosts costs(steps);
  std::vector<SetCost> all;
  for (KeptSet set = 0; set < KeptSet{1} << names.size(); ++set) {
    all.push_back(costs.of(set));
  }
  // Of equal ones the set that names least.
  std::ranges::sort(all, [](const SetCost& a, const SetCost& b) {
    return std::tuple(a.bytes, a.seconds, std::popcount(a.set), a.set) <
           std::tuple(b.bytes, b.seconds, std::popcount(b.set), b.set);
  });
  std::vector<KeptChoice> front;
  for (const SetCost& cost : all) {
    if (!front.empty() && cost.seconds >= front.back().seconds) {
      continue;
    }
    KeptChoice choice = {.keep = {}, .bytes = cost.bytes, .seconds = cost.seconds};
    for (std::size_t bit = 0; bit < names.size(); ++bit) {
      if ((cost.set >> bit & 1U) != 0) {
        choice.keep.insert(choice.keep.end(), names[bit].begin(), names[bit].end());
      }
    }
    for (const LayerStep& step : steps) {
      if (step.is_kept) {
        choice.keep.push_back(step.name);
      }
    }
    std::ranges::sort(choice.keep);
    choice.keep.erase(std::ranges::unique(choice.keep).begin(), choice.keep.end());
    front.push_back(std::move(choice));
  }
  return front;
}

// Layers of one kind have the same choices.
bool are_alike(const std::vector<LayerStep>& a, const std::vector<LayerStep>& b) {
  return std::ranges::equal(a, b, [](const LayerStep& x, const LayerStep& y) {
    return x.name == y.name && x.reads == y.reads && x.bytes == y.bytes && x.seconds == y.seconds &&
           x.is_kept == y.is_kept && x.is_read == y.is_read;
  });
}

}  // namespace

std::vector<LayerChoices> recompute_choices(const Graph& graph, const NodeSeconds& seconds) {
  LayerSteps steps(graph, seconds);
  std::vector<LayerChoices> choices;
  const std::vector<LayerStep>* last = nullptr;
  for (auto& [layer, own] : steps.layers()) {
    if (std::ranges::none_of(own, &LayerStep::is_read)) {
      continue;
    }
    std::vector<LayerStep> plain = own;
    if (last != nullptr && are_alike(plain, *last)) {
      choices.push_back({.layer = layer, .front = choices.back().front});
      continue;
    }
    choices.push_back({.layer = layer, .front = front_of(plain)});
    last = &own;
  }
  return choices;
}

}  // namespace tessera
