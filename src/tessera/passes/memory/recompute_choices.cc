#include "tessera/passes/memory/recompute_choices.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
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
  bool is_read = false;              // by the layer's backward
  bool is_read_later = false;        // by that of another layer
  bool by_backward = false;          // read by one of these actions,
  bool by_weight_gradient = false;   // and by this one
  bool is_shared = false;            // with other slices
  std::optional<unsigned> bit = {};  // of a set of what is kept

  // What two actions read is to stay.
  bool may_leave() const { return !is_shared && by_backward != by_weight_gradient; }

  friend bool operator==(const LayerStep&, const LayerStep&) = default;
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
  LayerSteps(const Graph& graph, const NodeSeconds& seconds, const ChoiceOptions& options)
      : graph_(graph),
        step_of_(graph.values.size()),
        names_(recompute_names(graph)),
        options_(options) {
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
                      .is_kept = !options_.may_repeat || talk == Talk::kFolds || is_random(node)};
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
      const auto& place = step_of_[operand.at()];
      if (!place) {
        continue;
      }
      LayerStep& step = layers_[place->layer][place->step];
      (is_own(place, node) ? step.is_read : step.is_read_later) = true;
      const bool is_later = options_.splits_backward && node.phase == Phase::kWeightGradient;
      (is_later ? step.by_weight_gradient : step.by_backward) = true;
      step.is_shared = step.is_shared || place->chunk != node.chunk;
    }
  }

  const Graph& graph_;
  std::vector<std::optional<Place>> step_of_;  // by value
  std::vector<std::string> names_;
  const ChoiceOptions& options_;
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
      if (keeps(step, set)) {
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

  // Whether a step is one that the set keeps.
  static bool keeps(const LayerStep& step, KeptSet set) {
    return step.is_kept || (step.bit && (set >> *step.bit & 1U) != 0);
  }

 private:
  const std::vector<LayerStep>& steps_;
  std::vector<bool> needed_;
};

// Names with bytes in at most so many groups: those that have most in one each, all others in one.
std::vector<std::vector<std::string>> group_names(const std::map<std::string, std::int64_t>& bytes,
                                                  std::size_t most) {
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [name, count] : bytes) {
    order.emplace_back(-count, name);
  }
  std::ranges::sort(order);
  std::vector<std::vector<std::string>> groups(std::min(order.size(), most));
  for (std::size_t i = 0; i < order.size(); ++i) {
    groups[std::min(i, most - 1)].push_back(std::move(order[i].second));
  }
  return groups;
}

// Gives a bit to each group of names of what may be kept; gives the names of each bit.
std::vector<std::vector<std::string>> choose_bits(std::vector<LayerStep>& steps) {
  SetCosts costs(steps);
  costs.of(0);
  std::map<std::string, std::int64_t> bytes;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (costs.needed()[i] && !steps[i].is_kept && steps[i].bytes > 0) {
      bytes[steps[i].name] += steps[i].bytes;
    }
  }
  std::vector<std::vector<std::string>> groups = group_names(bytes, kMostChosen);
  for (std::size_t bit = 0; bit < groups.size(); ++bit) {
    for (LayerStep& step : steps) {
      if (std::ranges::find(groups[bit], step.name) != groups[bit].end()) {
        step.bit = static_cast<unsigned>(bit);
      }
    }
  }
  return groups;
}

// What a set keeps by name, of which ops that are always kept are said, too.
std::vector<std::string> kept_names(const std::vector<LayerStep>& steps,
                                    const std::vector<std::vector<std::string>>& names,
                                    KeptSet set) {
  std::vector<std::string> keep;
  for (std::size_t bit = 0; bit < names.size(); ++bit) {
    if ((set >> bit & 1U) != 0) {
      keep.insert(keep.end(), names[bit].begin(), names[bit].end());
    }
  }
  for (const LayerStep& step : steps) {
    if (step.is_kept) {
      keep.push_back(step.name);
    }
  }
  std::ranges::sort(keep);
  keep.erase(std::ranges::unique(keep).begin(), keep.end());
  return keep;
}

// What a set keeps, and what of it is stored.
struct StoredCost {
  SetCost kept;
  std::size_t kept_index = 0;  // in an order of sets
  KeptSet stored = 0;          // of groups of names
  std::int64_t stored_bytes = 0;
  double seconds = 0.0;

  std::int64_t bytes() const { return kept.bytes - stored_bytes; }
};

// Those of which none is better in bytes, these with what is stored, and seconds, of those that
// store at most kMostChoices; of equal ones the first.
std::vector<StoredCost> pareto(std::vector<StoredCost> costs) {
  std::ranges::stable_sort(costs, [](const StoredCost& a, const StoredCost& b) {
    return std::tuple(a.bytes(), a.kept.bytes, a.seconds) <
           std::tuple(b.bytes(), b.kept.bytes, b.seconds);
  });
  std::vector<StoredCost> front;
  std::map<std::int64_t, double> least;  // seconds, by what is there before it is stored
  for (const StoredCost& cost : costs) {
    auto after = least.upper_bound(cost.kept.bytes);
    if (after != least.begin() && std::prev(after)->second <= cost.seconds) {
      continue;
    }
    while (after != least.end() && after->second >= cost.seconds) {
      after = least.erase(after);
    }
    least[cost.kept.bytes] = cost.seconds;
    front.push_back(cost);
  }
  // Those that store nothing stay: they may be all that fits.
  const std::size_t stride = (front.size() - 1) / kMostChoices + 1;
  std::vector<StoredCost> fewer;
  for (std::size_t i = 0; i < front.size(); ++i) {
    if (front[i].stored_bytes == 0 || i % stride == 0) {
      fewer.push_back(front[i]);
    }
  }
  return fewer;
}

// The choices of one layer.
class LayerFront {
 public:
  LayerFront(std::vector<LayerStep> steps, const ChoiceOptions& options)
      : steps_(std::move(steps)), names_(choose_bits(steps_)), options_(options), costs_(steps_) {}

  // Of what the layer leaves to the one after it, and may be stored.
  std::int64_t left_bytes() const {
    std::int64_t bytes = 0;
    for (const LayerStep& step : steps_) {
      const bool is_left = step.is_read_later && !step.is_read && step.may_leave();
      bytes += is_left && options_.store_seconds ? step.bytes : 0;
    }
    return bytes;
  }

  std::vector<KeptChoice> choices() {
    for (const SetCost& cost : kept_sets()) {
      add(cost);
    }
    std::vector<KeptChoice> front;
    for (const StoredCost& cost : pareto(std::move(all_))) {
      front.push_back({.keep = kept_names(steps_, names_, cost.kept.set),
                       .store = stored_names(cost),
                       .bytes = cost.bytes(),
                       .stored_bytes = cost.stored_bytes,
                       .repeated = cost.kept.seconds,
                       .seconds = cost.seconds});
    }
    return front;
  }

 private:
  // Of which none is better in both; of equal ones the set that names least.
  std::vector<SetCost> kept_sets() {
    std::vector<SetCost> all;
    for (KeptSet set = 0; set < KeptSet{1} << names_.size(); ++set) {
      all.push_back(costs_.of(set));
    }
    std::ranges::sort(all, [](const SetCost& a, const SetCost& b) {
      return std::tuple(a.bytes, a.seconds, std::popcount(a.set), a.set) <
             std::tuple(b.bytes, b.seconds, std::popcount(b.set), b.set);
    });
    std::vector<SetCost> front;
    for (const SetCost& cost : all) {
      if (front.empty() || cost.seconds < front.back().seconds) {
        front.push_back(cost);
      }
    }
    return front;
  }

  // With each part of what may be stored of it.
  void add(const SetCost& cost) {
    const std::size_t index = groups_.size();
    all_.push_back({.kept = cost, .kept_index = index, .seconds = cost.seconds});
    groups_.emplace_back();
    if (!options_.store_seconds) {
      return;
    }
    const std::map<std::string, std::int64_t> bytes = storable(cost.set);
    groups_.back() = group_names(bytes, kMostStored);
    std::vector<std::int64_t> of_group;
    for (const std::vector<std::string>& group : groups_.back()) {
      std::int64_t& sum = of_group.emplace_back(0);
      for (const std::string& name : group) {
        sum += bytes.at(name);
      }
    }
    for (KeptSet stored = 1; stored < KeptSet{1} << of_group.size(); ++stored) {
      StoredCost& added =
          all_.emplace_back(StoredCost{.kept = cost, .kept_index = index, .stored = stored});
      for (std::size_t bit = 0; bit < of_group.size(); ++bit) {
        added.stored_bytes += (stored >> bit & 1U) != 0 ? of_group[bit] : 0;
      }
      added.seconds =
          cost.seconds + *options_.store_seconds * static_cast<double>(added.stored_bytes);
    }
  }

  // Of what the set keeps, and of what the layer leaves to the one after it, by name.
  std::map<std::string, std::int64_t> storable(KeptSet set) {
    costs_.of(set);
    std::map<std::string, std::int64_t> bytes;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const LayerStep& step = steps_[i];
      const bool is_there =
          (costs_.needed()[i] && SetCosts::keeps(step, set)) || step.is_read_later;
      if (is_there && step.may_leave() && step.bytes > 0) {
        bytes[step.name] += step.bytes;
      }
    }
    return bytes;
  }

  std::vector<std::string> stored_names(const StoredCost& cost) const {
    std::vector<std::string> names;
    const std::vector<std::vector<std::string>>& groups = groups_[cost.kept_index];
    for (std::size_t bit = 0; bit < groups.size(); ++bit) {
      if ((cost.stored >> bit & 1U) != 0) {
        names.insert(names.end(), groups[bit].begin(), groups[bit].end());
      }
    }
    std::ranges::sort(names);
    return names;
  }

  std::vector<LayerStep> steps_;
  std::vector<std::vector<std::string>> names_;  // by bit
  const ChoiceOptions& options_;
  SetCosts costs_;
  std::vector<StoredCost> all_;
  std::vector<std::vector<std::vector<std::string>>> groups_;  // by kept_index
};

}  // namespace

std::vector<LayerChoices> recompute_choices(const Graph& graph,
                                            const NodeSeconds& seconds,
                                            const ChoiceOptions& options) {
  LayerSteps steps(graph, seconds, options);
  std::vector<LayerChoices> choices;
  const std::vector<LayerStep>* last = nullptr;
  for (auto& [layer, own] : steps.layers()) {
    if (std::ranges::none_of(
            own, [](const LayerStep& step) { return step.is_read || step.is_read_later; })) {
      continue;
    }
    // Layers of one kind have the same choices.
    if (last != nullptr && own == *last) {
      choices.push_back(choices.back());
      choices.back().layer = layer;
      continue;
    }
    LayerFront front(own, options);
    choices.push_back({.layer = layer, .left_bytes = front.left_bytes(), .front = front.choices()});
    last = &own;
  }
  return choices;
}

}  // namespace tessera
