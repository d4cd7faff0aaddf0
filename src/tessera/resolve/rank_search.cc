#include "tessera/resolve/rank_search.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera {
namespace {

bool stores_any(const KeptChoice& choice) {
  return choice.stored_bytes > 0;
}

// Fronts begin with what keeps least, which stores all that may be where anything may.
bool may_store(const std::vector<LayerChoices>& layers) {
  return std::ranges::any_of(layers,
                             [](const LayerChoices& layer) { return stores_any(layer.front[0]); });
}

// Of layers that are alike those keep most whose backward comes first: when that of the others
// begins, it is free again.
void sort_alike(const std::vector<LayerChoices>& layers, std::size_t end, ChosenFronts& chosen) {
  const auto alike = [&](std::size_t a, std::size_t b) {
    return std::ranges::equal(
        layers[a].front, layers[b].front, {}, &KeptChoice::bytes, &KeptChoice::bytes);
  };
  for (std::size_t begin = 0; begin < end;) {
    std::size_t last = begin;
    while (last < end && alike(begin, last)) {
      ++last;
    }
    std::sort(chosen.begin() + static_cast<std::ptrdiff_t>(begin),
              chosen.begin() + static_cast<std::ptrdiff_t>(last));
    begin = last;
  }
}

}  // namespace

Knapsack::Knapsack(const std::vector<LayerChoices>& layers,
                   std::vector<double> weights,
                   std::size_t end_of_stores,
                   std::size_t granules)
    : layers_(layers),
      weights_(std::move(weights)),
      end_of_stores_(end_of_stores),
      granules_(granules) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    all_bytes_ +=
        weights_[i] * static_cast<double>(layers[i].kept_bytes(layers[i].front.size() - 1));
    stores_ = stores_ || (i < end_of_stores && std::ranges::any_of(layers[i].front, stores_any));
  }
  if (!stores_) {
    fill(granules);
  }
}

double Knapsack::bytes_of(const ChosenFronts& chosen) const {
  double kept = 0.0;
  double most = 0.0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    kept += weights_[i] * static_cast<double>(layers_[i].kept_bytes(chosen[i]));
    most = std::max(most, kept + static_cast<double>(layers_[i].front[chosen[i]].stored_bytes));
  }
  return most;
}

// Rounded down, so that all together take all that there is.
std::size_t Knapsack::granules_of(double bytes) const {
  const double part = all_bytes_ > 0.0 ? std::clamp(bytes / all_bytes_, 0.0, 1.0) : 0.0;
  return static_cast<std::size_t>(part * static_cast<double>(granules_));
}

void Knapsack::fill(std::size_t room) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  seconds_.assign(room + 1, kNever);
  seconds_[0] = 0.0;
  chosen_.clear();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    std::vector<double> next(room + 1, kNever);
    std::vector<std::uint16_t>& chosen = chosen_.emplace_back(room + 1, std::uint16_t{0});
    for (std::size_t k = 0; k < layers_[i].front.size(); ++k) {
      const KeptChoice& choice = layers_[i].front[k];
      if (i >= end_of_stores_ && stores_any(choice)) {
        continue;
      }
      const std::size_t kept =
          granules_of(weights_[i] * static_cast<double>(layers_[i].kept_bytes(k)));
      const std::size_t there = kept + granules_of(static_cast<double>(choice.stored_bytes));
      for (std::size_t taken = 0; taken + there <= room; ++taken) {
        const double seconds = seconds_[taken] + choice.seconds;
        if (seconds < next[taken + kept]) {
          next[taken + kept] = seconds;
          chosen[taken + kept] = static_cast<std::uint16_t>(k);
        }
      }
    }
    seconds_ = std::move(next);
  }
}

ChosenFronts Knapsack::choose(double bytes) {
  const std::size_t room = granules_of(bytes);
  if (stores_) {
    fill(room);
  }
  const auto end = seconds_.begin() + static_cast<std::ptrdiff_t>(room + 1);
  const auto best = std::min_element(seconds_.begin(), end);
  if (*best == std::numeric_limits<double>::infinity()) {
    return ChosenFronts(layers_.size(), 0);
  }
  auto taken = static_cast<std::size_t>(best - seconds_.begin());
  ChosenFronts chosen(layers_.size());
  for (std::size_t i = layers_.size(); i-- > 0;) {
    chosen[i] = chosen_[i][taken];
    taken -= granules_of(weights_[i] * static_cast<double>(layers_[i].kept_bytes(chosen[i])));
  }
  return chosen;
}

ChosenFronts least_unstored(const std::vector<LayerChoices>& layers) {
  ChosenFronts chosen;
  for (const LayerChoices& layer : layers) {
    // Fronts are in the order of what is kept.
    const auto found = std::ranges::find_if_not(layer.front, stores_any);
    chosen.push_back(static_cast<std::size_t>(found - layer.front.begin()));
  }
  return chosen;
}

ChosenCosts costs_of(const std::vector<LayerChoices>& layers, const ChosenFronts& chosen) {
  ChosenCosts costs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const KeptChoice& choice = layers[i].front[chosen[i]];
    costs.seconds += choice.seconds;
    costs.repeated += choice.repeated;
    costs.stored_bytes += choice.stored_bytes;
  }
  return costs;
}

void RankSearch::begin(std::int64_t all, std::int64_t least, std::int64_t limit) {
  const std::vector<LayerChoices>& layers = *layers_;
  const bool stores = may_store(layers);
  is_done_ = all <= limit || (least > limit && !stores) || layers.empty();
  if (layers.empty()) {
    best_bytes_ = all;
    return;
  }
  best_ = all <= limit ? all_kept() : least_unstored(layers);
  best_bytes_ = all <= limit ? all : least;
  above_bytes_ = all;
  below_bytes_ = least;
  all_bytes_ = static_cast<double>(all - least);
  const Knapsack once(layers, std::vector<double>(layers.size(), 1.0), 0, 1);
  const double bytes = once.all_bytes() - once.bytes_of(least_unstored(layers));
  in_flight_ = bytes > 0.0 ? std::max(1.0, all_bytes_ / bytes) : in_flight_;
}

void RankSearch::propose_last() {
  proposed_ = best_;
  if (!is_done_) {
    proposed_.back() = layers_->back().front.size() - 1;
  }
}

void RankSearch::learn_last(std::int64_t bytes, std::int64_t limit) {
  if (is_done_) {
    return;
  }
  const std::vector<LayerChoices>& layers = *layers_;
  const LayerChoices& last = layers.back();
  const auto own = static_cast<double>(last.front.back().bytes - last.front[best_.back()].bytes);
  const double usual = spares_last_ ? 0.0 : in_flight_;
  const double taken = own > 0.0 ? static_cast<double>(bytes - below_bytes_) / own : usual;
  weights_.assign(layers.size(), in_flight_);
  weights_.back() = std::clamp(taken, 0.0, in_flight_);
  spares_last_ = weights_.back() < in_flight_ / 2.0;
  // What is stored of the one before it would be there when it is needed.
  const std::size_t spared = spares_last_ ? std::min<std::size_t>(layers.size(), 2) : 0;
  end_of_stores_ = layers.size() - spared;
  // Where things are stored, it is filled anew for each room.
  constexpr std::size_t kFine = 4096;
  constexpr std::size_t kCoarse = 1024;
  knapsack_.emplace(layers, weights_, end_of_stores_, may_store(layers) ? kCoarse : kFine);
  const double least = knapsack_->bytes_of(best_);
  if (below_bytes_ > limit) {  // only if more is stored than that keeps
    above_ = least;
    above_bytes_ = below_bytes_;
    below_bytes_ -= static_cast<std::int64_t>(least);
    all_bytes_ = least;
    return;
  }
  below_ = least;
  above_ = knapsack_->all_bytes();
  if (bytes <= limit && spares_last_) {
    best_ = proposed_;
    best_bytes_ = bytes;
  }
}

void RankSearch::propose(std::int64_t limit) {
  // After a few that did not fit, lines are no good judges.
  constexpr int kFew = 2;
  double part = num_refused_ > kFew
                    ? 0.5
                    : static_cast<double>(limit - below_bytes_) /
                          std::max(1.0, static_cast<double>(above_bytes_ - below_bytes_));
  const bool best_fits = best_bytes_ <= limit;
  while (!is_done_) {
    const double width = above_ - below_;
    kept_ = below_ + std::clamp(part, kLeastPart, 1.0 - kLeastPart) * width;
    proposed_ = knapsack_->choose(kept_);
    sort_alike(*layers_, end_of_sorted(), proposed_);
    is_done_ = width <= least_width() * knapsack_->all_bytes();
    if (proposed_ != best_ && proposed_ != refused_) {
      break;
    }
    (proposed_ == best_ && best_fits ? below_ : above_) = kept_;
    part = 0.5;
  }
  if (is_done_) {
    proposed_ = best_;
  }
}

void RankSearch::learn(std::int64_t bytes, std::int64_t limit) {
  if (is_done_) {
    return;
  }
  const bool fits = bytes <= limit;
  num_refused_ = fits ? 0 : num_refused_ + 1;
  (fits ? below_ : above_) = kept_;
  (fits ? below_bytes_ : above_bytes_) = bytes;
  // As long as nothing fits, what needs least is the best.
  const bool is_better =
      best_bytes_ > limit ? bytes < best_bytes_ : fits && seconds_of(proposed_) < seconds_of(best_);
  if (is_better) {
    best_ = proposed_;
    best_bytes_ = bytes;
  }
  if (!fits) {
    refused_ = proposed_;
  }
  is_done_ = fits && static_cast<double>(limit - bytes) < least_width() * all_bytes_;
}

// Layers that store nothing are not to get what others store.
std::size_t RankSearch::end_of_sorted() const {
  return may_store(*layers_) ? end_of_stores_ : layers_->size() - (spares_last_ ? 1 : 0);
}

bool RankSearch::repeat_sums(std::int64_t limit) {
  repeats_sums_ = may_repeat_ && !layers_->empty() && best_bytes_ > limit;
  return repeats_sums_;
}

bool RankSearch::lacks_room(std::int64_t limit) const {
  return !layers_->empty() && may_store(*layers_) && best_bytes_ > limit;
}

bool RankSearch::propose_better(std::int64_t limit, double least) {
  proposed_ = best_;
  if (!knapsack_ || best_bytes_ > limit) {
    return false;
  }
  const double room = static_cast<double>(limit - best_bytes_) + kDoubt * all_bytes_;
  const double of_best = knapsack_->bytes_of(best_);
  double most = least;
  std::optional<std::pair<std::size_t, std::size_t>> better;
  for (std::size_t i = 0; i < layers_->size(); ++i) {
    const std::vector<KeptChoice>& front = (*layers_)[i].front;
    for (std::size_t k = 0; k < front.size(); ++k) {
      const double gain = front[best_[i]].seconds - front[k].seconds;
      ChosenFronts changed = best_;
      changed[i] = k;
      const bool may_be = i < end_of_stores_ || !stores_any(front[k]);
      if (may_be && gain > most && knapsack_->bytes_of(changed) - of_best <= room &&
          !tried_.contains(changed)) {
        most = gain;
        better = {i, k};
      }
    }
  }
  if (better) {
    proposed_[better->first] = better->second;
    tried_.insert(proposed_);
  }
  return better.has_value();
}

void RankSearch::learn_better(std::int64_t bytes, std::int64_t limit) {
  if (proposed_ != best_ && bytes <= std::max(limit, best_bytes_)) {
    best_ = proposed_;
    best_bytes_ = bytes;
  }
}

double RankSearch::seconds_with(double more) {
  if (!knapsack_) {
    return costs().seconds;
  }
  const double range = knapsack_->all_bytes() - knapsack_->bytes_of(least_unstored(*layers_));
  const double bytes = below_ + more / all_bytes_ * range;
  return std::min(costs().seconds, seconds_of(knapsack_->choose(bytes)));
}

void RankSearch::set_rules(std::vector<RecomputeRule>& rules) const {
  for (std::size_t i = 0; i < layers_->size(); ++i) {
    const KeptChoice& choice = (*layers_)[i].front[proposed_[i]];
    RecomputeRule& rule = rules[static_cast<std::size_t>((*layers_)[i].layer)];
    const bool keeps_all = proposed_[i] + 1 == (*layers_)[i].front.size();
    if (may_repeat_ && (!keeps_all || repeats_sums_)) {
      rule.kept = RecomputeKept::kInputs;
      rule.keep = repeats_sums_ ? std::vector<std::string>() : choice.keep;
    }
    rule.store = choice.store;
  }
}

double RankSearch::least_width() const {
  return may_store(*layers_) ? kStoreWidth : kLeastWidth;
}

ChosenFronts RankSearch::all_kept() const {
  ChosenFronts chosen;
  for (const LayerChoices& layer : *layers_) {
    chosen.push_back(layer.front.size() - 1);
  }
  return chosen;
}

}  // namespace tessera
