#include "tessera/actions/split_layers.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "tessera/actions/as_index.h"
#include "tessera/actions/run_order.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

using Counts = std::vector<std::int64_t>;  // layers of each stage

ActionCosts operator+(const ActionCosts& a, const ActionCosts& b) {
  return {a.forward + b.forward,
          a.input_gradient + b.input_gradient,
          a.weight_gradient + b.weight_gradient};
}

bool ranks_have_equally_many_stages(const ActionTable& table) {
  std::vector<std::int64_t> stages(as_index(table.ranks));
  for (const std::int64_t rank : table.rank_of_stage) {
    ++stages[as_index(rank)];
  }
  return std::ranges::count(stages, stages.front()) == table.ranks;
}

// What to change where more than `parts` stages are wanted, `chunks` on each rank.
std::string fewer_stages(std::int64_t ranks, std::int64_t chunks, std::int64_t parts) {
  const std::int64_t possible_chunks = parts / ranks;
  const std::int64_t possible_ranks = parts / chunks;
  std::string fewer_chunks;
  if (possible_chunks == 1 && chunks > 1) {
    fewer_chunks = "a schedule of one chunk such as pipeline.schedule = \"zb-h1\" or \"1f1b\"";
  } else if (possible_chunks >= 2) {
    fewer_chunks = format("pipeline.chunks = {}", possible_chunks);
  }
  if (possible_ranks <= 1) {
    return fewer_chunks.empty() ? "fewer stages" : fewer_chunks;
  }
  std::string fewer_ranks = format("parallel.pipeline <= {}", possible_ranks);
  if (fewer_chunks.empty()) {
    return fewer_ranks;
  }
  return format("{}{} or {}", fewer_chunks, possible_chunks == 1 ? "," : "", fewer_ranks);
}

[[noreturn]] void fail_of_stages(std::int64_t stages,
                                 std::int64_t layers,
                                 const std::string& remedy) {
  fail(ErrorCode::kInvalidConfig,
       "{} stages, but {}, an embedding and a head make at most {}: {}",
       stages,
       format_plural(layers, "layer"),
       layers + 2,
       remedy);
}

void require_stages(const ActionTable& table, const ModelCosts& model) {
  const std::int64_t layers = std::ssize(model.layers);
  if (ranks_have_equally_many_stages(table)) {
    require_parts(table.ranks, table.stages / table.ranks, layers);
  } else if (table.stages > layers + 2) {
    fail_of_stages(table.stages, layers, "fewer stages");
  }
}

// How good a split is: less is better, in `first`, then in `second`.
struct Score {
  double first = 0.0;
  double second = 0.0;
};

// Sums in another order differ by less than this share.
constexpr double kSame = 1e-9;

constexpr Score kWorst = {std::numeric_limits<double>::infinity(), 0.0};

bool is_better(const Score& a, const Score& b) {
  if (a.first < b.first * (1.0 - kSame)) {
    return true;
  }
  return a.first <= b.first * (1.0 + kSame) && a.second < b.second * (1.0 - kSame);
}

class SplitSearch {
 public:
  SplitSearch(const ActionTable& table, const ModelCosts& model, double hop)
      : table_(table), model_(model), hop_(hop), clock_(table) {
    for (const ActionCosts& layer : model.layers) {
      before_.push_back(before_.back() + layer);
    }
  }

  LayerSplit best() {
    LayerSplit best;
    Score best_score = kWorst;
    for (const Counts& start : starts()) {
      const Counts by_rank = descend(
          start, [&](const Counts& counts, const Score& /*than*/) { return rank_score(counts); });
      for (const Counts& from : {start, by_rank}) {
        const auto score_of = [&](const Counts& counts, const Score& than) {
          return time_score(counts, than);
        };
        const Counts found = descend(from, score_of);
        const Score score = time_score(found, kWorst);
        if (is_better(score, best_score)) {
          best.layers_of_stage = found;
          best_score = score;
        }
      }
    }
    // Not the score's: costs that are differences of sums may be other in their last bits.
    best.makespan = clock_.run(stage_costs(model_, best.layers_of_stage), hop_);
    return best;
  }

 private:
  // The costs of stage `stage` if it has layers begin to end.
  ActionCosts stage(std::int64_t stage, std::int64_t begin, std::int64_t end) const {
    const ActionCosts& first = before_[as_index(begin)];
    const ActionCosts& last = before_[as_index(end)];
    ActionCosts costs = {last.forward - first.forward,
                         last.input_gradient - first.input_gradient,
                         last.weight_gradient - first.weight_gradient};
    if (stage == 0) {
      costs = costs + model_.embedding;
    }
    if (stage + 1 == table_.stages) {
      costs = costs + model_.head;
    }
    return costs;
  }

  void set_costs(const Counts& counts) {
    costs_.clear();
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      costs_.push_back(stage(static_cast<std::int64_t>(i), begin, begin + counts[i]));
      begin += counts[i];
    }
  }

  Score rank_score(const Counts& counts) {
    set_costs(counts);
    std::vector<double> work(table_.rows.size());
    for (std::size_t i = 0; i < costs_.size(); ++i) {
      work[as_index(table_.rank_of_stage[i])] += total(costs_[i]);
    }
    return {*std::ranges::max_element(work),
            std::inner_product(work.begin(), work.end(), work.begin(), 0.0)};
  }

  // Not worked out to the end where it is worse than `than`.
  Score time_score(const Counts& counts, const Score& than) {
    const auto [most, squares] = rank_score(counts);
    const Score at_least = {most * static_cast<double>(table_.microbatches), squares};
    if (!is_better(at_least, than)) {
      return at_least;
    }
    const bool may_be_as_long = squares < than.second * (1.0 - kSame);
    const double limit = than.first * (may_be_as_long ? 1.0 + kSame : 1.0 - kSame);
    return {clock_.run(costs_, hop_, limit), squares};
  }

  // Moves single layers while that helps: to any stage if there are few, or to the stage beside.
  template <class ScoreOf>
  Counts descend(Counts counts, const ScoreOf& score_of) const {
    constexpr std::int64_t kFewStages = 16;
    const std::int64_t reach = table_.stages <= kFewStages ? table_.stages : 1;
    Score score = score_of(counts, kWorst);
    for (bool improved = true; improved;) {
      improved = false;
      for (std::int64_t from = 0; from < table_.stages; ++from) {
        const std::int64_t last = std::min(table_.stages - 1, from + reach);
        for (std::int64_t to = std::max<std::int64_t>(0, from - reach); to <= last; ++to) {
          improved = try_move(from, to, counts, score, score_of) || improved;
        }
      }
    }
    return counts;
  }

  template <class ScoreOf>
  static bool try_move(
      std::int64_t from, std::int64_t to, Counts& counts, Score& score, const ScoreOf& score_of) {
    if (from == to || counts[as_index(from)] == 0) {
      return false;
    }
    --counts[as_index(from)];
    ++counts[as_index(to)];
    const Score moved = score_of(counts, score);
    if (is_better(moved, score)) {
      score = moved;
      return true;
    }
    ++counts[as_index(from)];
    --counts[as_index(to)];
    return false;
  }

  std::vector<Counts> starts() const {
    const auto num_layers = static_cast<std::int64_t>(model_.layers.size());
    Counts even;
    for (std::int64_t i = 0; i < table_.stages; ++i) {
      even.push_back((i + 1) * num_layers / table_.stages - i * num_layers / table_.stages);
    }
    return {even, filled(smallest_largest_stage())};
  }

  // As many layers in each stage as its cost allows, from the first; the last stage has the rest.
  Counts filled(double most) const {
    Counts counts;
    const auto num_layers = static_cast<std::int64_t>(model_.layers.size());
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i + 1 < table_.stages; ++i) {
      std::int64_t end = begin;
      while (end < num_layers && total(stage(i, begin, end + 1)) <= most) {
        ++end;
      }
      counts.push_back(end - begin);
      begin = end;
    }
    counts.push_back(num_layers - begin);
    return counts;
  }

  // By halving: the least cost within which filled() brings every stage.
  double smallest_largest_stage() const {
    constexpr int kHalvings = 40;
    double low = 0.0;
    double high = total(before_.back() + model_.embedding + model_.head);
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      const Counts counts = filled(middle);
      const auto num_layers = static_cast<std::int64_t>(model_.layers.size());
      const bool fits =
          total(stage(table_.stages - 1, num_layers - counts.back(), num_layers)) <= middle;
      (fits ? high : low) = middle;
    }
    return high;
  }

  const ActionTable& table_;
  const ModelCosts& model_;
  double hop_;
  TableClock clock_;
  std::vector<ActionCosts> before_ = {{0.0, 0.0, 0.0}};  // of all layers before each layer
  std::vector<ActionCosts> costs_;                       // by stage, of the split that is scored
};

}  // namespace

std::vector<ActionCosts> stage_costs(const ModelCosts& model,
                                     std::span<const std::int64_t> layers_of_stage) {
  const std::int64_t sum =
      std::accumulate(layers_of_stage.begin(), layers_of_stage.end(), std::int64_t{0});
  TESSERA_REQUIRE(!layers_of_stage.empty() && std::cmp_equal(sum, model.layers.size()),
                  ErrorCode::kInvalidArgument,
                  "{} stages with {} layers, the model has {}",
                  layers_of_stage.size(),
                  sum,
                  model.layers.size());
  std::vector<ActionCosts> stages;
  auto layer = model.layers.begin();
  for (const std::int64_t count : layers_of_stage) {
    ActionCosts costs = {0.0, 0.0, 0.0};
    for (std::int64_t i = 0; i < count; ++i) {
      costs = costs + *layer++;
    }
    stages.push_back(costs);
  }
  stages.front() = stages.front() + model.embedding;
  stages.back() = stages.back() + model.head;
  return stages;
}

void require_parts(std::int64_t ranks, std::int64_t chunks, std::int64_t layers) {
  const std::int64_t parts = layers + 2;
  if (chunks > parts / ranks) {
    fail_of_stages(ranks * chunks, layers, fewer_stages(ranks, chunks, parts));
  }
}

LayerSplit split_layers(const ActionTable& table, const ModelCosts& model, double hop) {
  require_stages(table, model);
  require_ticks(model.embedding);
  require_ticks(model.head);
  for (const ActionCosts& layer : model.layers) {
    require_ticks(layer);
  }
  return SplitSearch(table, model, hop).best();
}

}  // namespace tessera
