#include "tessera/resolve/choose_states.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>

#include "tessera/resolve/rank_search.h"

namespace tessera {
namespace {

constexpr std::int64_t kSteps = 32;       // of the bytes that may move,
constexpr std::int64_t kFineSteps = 256;  // and around the best of them
constexpr std::int64_t kLayerSteps = 16;  // of what layers keep less
constexpr std::size_t kGranules = 256;    // of what they keep
constexpr std::int64_t kMovedTwice = 2;   // there and back

// In order, so that no product overflows.
std::int64_t part(std::int64_t bytes, std::int64_t step, std::int64_t steps) {
  return bytes / steps * step + bytes % steps * step / steps;
}

// What layers come to, with one price of what they store, in such parts of what may be too much.
class LayerCosts {
 public:
  // `most`: bytes that they can do without.
  LayerCosts(const std::vector<LayerChoices>& layers, const RankCosts& costs, std::int64_t most)
      : most_(most), bytes_(std::max<std::int64_t>(1, std::min(costs.excess, most))) {
    std::vector<LayerChoices> few = layers;
    for (LayerChoices& layer : few) {
      layer.front = thinned(std::move(layer.front));
    }
    const std::size_t end_of_stores = few.size() - std::min<std::size_t>(few.size(), 2);
    Knapsack knapsack(
        few, std::vector<double>(few.size(), costs.in_flight), end_of_stores, kGranules);
    for (std::int64_t step = 0; step <= kLayerSteps; ++step) {
      const double kept =
          knapsack.all_bytes() - static_cast<double>(part(bytes_, step, kLayerSteps));
      costs_.push_back(costs_of(few, knapsack.choose(kept)));
    }
  }

  // Bytes of which they do not make so many.
  std::int64_t missing(std::int64_t excess) const {
    return std::max<std::int64_t>(0, excess - most_);
  }

  // That many bytes less than all.
  const ChosenCosts& with(std::int64_t excess) const {
    const double step = static_cast<double>(excess) / static_cast<double>(bytes_) * kLayerSteps;
    return costs_[static_cast<std::size_t>(std::clamp<double>(std::ceil(step), 0.0, kLayerSteps))];
  }

 private:
  static constexpr std::size_t kMostWays = 16;  // of a layer that store

  // What stores nothing stays: it may be all that fits.
  static std::vector<KeptChoice> thinned(std::vector<KeptChoice> front) {
    std::vector<KeptChoice> result;
    const std::size_t stride = front.size() / kMostWays + 1;
    for (std::size_t i = 0; i < front.size(); ++i) {
      if (front[i].stored_bytes == 0 || i % stride == 0) {
        result.push_back(std::move(front[i]));
      }
    }
    return result;
  }

  std::int64_t most_;
  std::int64_t bytes_;
  std::vector<ChosenCosts> costs_;  // by step
};

// With these states elsewhere.
RankChoice estimated(const RankCosts& costs,
                     const LayerCosts& layers,
                     const OffloadedBytes& moved) {
  const std::int64_t states = moved.optimizer + moved.parameters;
  std::int64_t excess = costs.excess - states;
  excess += states > 0 ? costs.staging - costs.freed_copy : 0;
  const ChosenCosts& own = layers.with(excess);
  return {
      .moved = moved,
      .seconds = added_seconds(costs, moved, own.repeated, static_cast<double>(own.stored_bytes)),
      .missing = layers.missing(excess)};
}

// The best way of all that were looked at.
class StateSearch {
 public:
  explicit StateSearch(const RankCosts& costs) : costs_(costs) {}

  // All parts of states, with layers that store for a price.
  void look_at(const std::vector<LayerChoices>& front, std::size_t price) {
    const LayerCosts layers(front, costs_, price == 0 ? costs_.of_layers : costs_.of_stores);
    const std::int64_t last_p = costs_.states.parameters > 0 ? kSteps : 0;
    const std::int64_t last_x = costs_.states.optimizer > 0 ? kSteps : 0;
    for (std::int64_t p = 0; p <= last_p; ++p) {
      for (std::int64_t x = 0; x <= last_x; ++x) {
        look_at(layers, price, parts(x, p, kSteps));
      }
    }
    if (best_->price == price) {
      look_around(layers, price);
    }
  }

  RankChoice best() const { return *best_; }

 private:
  OffloadedBytes parts(std::int64_t x, std::int64_t p, std::int64_t steps) const {
    return {.optimizer = part(costs_.states.optimizer, x, steps),
            .parameters = part(costs_.states.parameters, p, steps)};
  }

  void look_at(const LayerCosts& layers, std::size_t price, const OffloadedBytes& moved) {
    RankChoice choice = estimated(costs_, layers, moved);
    choice.price = price;
    if (!best_ ||
        std::tie(choice.missing, choice.seconds) < std::tie(best_->missing, best_->seconds)) {
      best_ = choice;
    }
  }

  // Up to one step less of each.
  void look_around(const LayerCosts& layers, std::size_t price) {
    const OffloadedBytes coarse = best_->moved;
    for (std::int64_t p = 0; p <= kFineSteps / kSteps; ++p) {
      for (std::int64_t x = 0; x <= kFineSteps / kSteps; ++x) {
        const OffloadedBytes less = parts(x, p, kFineSteps);
        if (less.optimizer <= coarse.optimizer && less.parameters <= coarse.parameters) {
          look_at(layers,
                  price,
                  {.optimizer = coarse.optimizer - less.optimizer,
                   .parameters = coarse.parameters - less.parameters});
        }
      }
    }
  }

  const RankCosts& costs_;
  std::optional<RankChoice> best_;
};

}  // namespace

std::vector<std::optional<double>> store_prices(double rate) {
  if (rate <= 0.0) {
    return {std::nullopt};
  }
  const double seconds = kMovedTwice / rate;
  return {std::nullopt, kUnhiddenPart * seconds, seconds};
}

double added_seconds(const RankCosts& costs,
                     const OffloadedBytes& moved,
                     double repeated,
                     double stored_bytes) {
  const auto seconds = [](double bytes, double rate) { return bytes > 0.0 ? bytes / rate : 0.0; };
  const double part_of_parameters =
      costs.states.parameters > 0
          ? static_cast<double>(moved.parameters) / static_cast<double>(costs.states.parameters)
          : 0.0;
  const double in_update = seconds(
      kMovedTwice * static_cast<double>(moved.optimizer) + part_of_parameters * costs.updated_io,
      kUpdateReach * costs.update_rate);
  const double computed = costs.num_microbatches * (costs.microbatch + repeated);
  const double of_states = seconds(part_of_parameters * costs.layers_io, costs.bandwidth);
  const double of_layers =
      seconds(kMovedTwice * costs.num_microbatches * stored_bytes, costs.store_rate);
  const double moving = of_states + of_layers;
  const double hidden = moving > 0.0 ? std::min(1.0, computed / moving) : 0.0;
  return std::max(in_update - costs.update, 0.0) + costs.num_microbatches * repeated +
         (1.0 - hidden) * moving +
         hidden * (kUnhiddenOfParameters * of_states + kUnhiddenPart * of_layers);
}

RankChoice choose_states(const RankCosts& costs,
                         const std::vector<std::vector<LayerChoices>>& fronts) {
  StateSearch search(costs);
  for (std::size_t price = 0; price < fronts.size(); ++price) {
    search.look_at(fronts[price], price);
  }
  return search.best();
}

}  // namespace tessera
