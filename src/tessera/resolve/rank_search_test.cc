#include "tessera/resolve/rank_search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

// Of random choices, the last of which keeps all and takes no time.
LayerChoices random_layer(std::mt19937_64& random, bool stores) {
  const auto up_to = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  };
  constexpr std::int64_t kMost = 1000;
  LayerChoices layer = {.left_bytes = stores ? up_to(200) : 0};
  for (int i = 0; i < 4; ++i) {
    const std::int64_t stored = stores && i % 2 == 0 ? up_to(kMost) : 0;
    layer.front.push_back({.bytes = up_to(kMost) - (stored > 0 ? layer.left_bytes : 0),
                           .stored_bytes = stored,
                           .seconds = 1.0 + static_cast<double>(up_to(kMost))});
  }
  std::ranges::sort(layer.front, {}, &KeptChoice::bytes);
  layer.front.push_back({.bytes = kMost, .seconds = 0.0});
  return layer;
}

// As much as is there at once: what layers up to one keep, with what that one stores.
double bytes_there(const std::vector<LayerChoices>& layers,
                   const std::vector<double>& weights,
                   const ChosenFronts& chosen) {
  double kept = 0.0;
  double most = 0.0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    kept += weights[i] * static_cast<double>(layers[i].kept_bytes(chosen[i]));
    most = std::max(most, kept + static_cast<double>(layers[i].front[chosen[i]].stored_bytes));
  }
  return most;
}

double best_of_all(const std::vector<LayerChoices>& layers,
                   const std::vector<double>& weights,
                   std::size_t end_of_stores,
                   double bytes) {
  double best = std::numeric_limits<double>::infinity();
  ChosenFronts chosen(layers.size(), 0);
  for (bool is_more = true; is_more;) {
    bool may_be = bytes_there(layers, weights, chosen) <= bytes;
    for (std::size_t i = end_of_stores; i < layers.size(); ++i) {
      may_be = may_be && layers[i].front[chosen[i]].stored_bytes == 0;
    }
    best = may_be ? std::min(best, costs_of(layers, chosen).seconds) : best;
    is_more = false;
    for (std::size_t i = 0; i < layers.size() && !is_more; ++i) {
      is_more = ++chosen[i] < layers[i].front.size();
      chosen[i] = is_more ? chosen[i] : 0;
    }
  }
  return best;
}

// No slower than the best of all in as many bytes, and within one granule of each layer of them.
TEST(Knapsack, FindsTheBestOfAll) {
  constexpr std::uint64_t kSeed = 3;
  constexpr std::size_t kGranules = 4096;
  std::mt19937_64 random(kSeed);
  for (int tried = 0; tried < 60; ++tried) {
    const bool stores = tried % 2 == 1;
    std::vector<LayerChoices> layers;
    std::vector<double> weights;
    for (std::size_t i = 0; i < 4; ++i) {
      layers.push_back(random_layer(random, stores));
      weights.push_back(1.0 + static_cast<double>(random() % 3));
    }
    const std::size_t end_of_stores = random() % 5;
    Knapsack knapsack(layers, weights, end_of_stores, kGranules);
    for (int part = 1; part <= 8; ++part) {
      const double bytes = knapsack.all_bytes() * part / 8;
      const double best = best_of_all(layers, weights, end_of_stores, bytes);
      const ChosenFronts chosen = knapsack.choose(bytes);
      if (best == std::numeric_limits<double>::infinity()) {
        continue;
      }
      EXPECT_LE(costs_of(layers, chosen).seconds, best);
      EXPECT_LE(bytes_there(layers, weights, chosen),
                bytes + 5.0 * knapsack.all_bytes() / kGranules);
    }
  }
}

}  // namespace
}  // namespace tessera
