#include "tessera/resolve/choose_states.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr std::int64_t kLayers = 8;

// Layers that keep 100 bytes, or repeat for a second, and may leave what they keep for a price.
std::vector<std::vector<LayerChoices>> fronts(const std::vector<std::optional<double>>& prices) {
  std::vector<std::vector<LayerChoices>> result;
  for (const std::optional<double>& price : prices) {
    std::vector<LayerChoices>& layers = result.emplace_back();
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      LayerChoices choices = {.layer = layer};
      if (price) {
        choices.front.push_back({.stored_bytes = 100, .seconds = 100.0 * *price});
      }
      choices.front.push_back({.repeated = 1.0, .seconds = 1.0});
      choices.front.push_back({.bytes = 100});
      layers.push_back(choices);
    }
  }
  return result;
}

constexpr RankCosts kCosts = {.excess = 400,
                              .of_layers = 800,
                              .of_stores = 800,
                              .states = {.optimizer = 3200, .parameters = 1600},
                              .updated_io = 3200.0,
                              .layers_io = 3200.0,
                              .update = 10.0,
                              .microbatch = 100.0,
                              .bandwidth = 1e6,
                              .update_rate = 1e6,
                              .store_rate = 0.0};

// The update hides what it moves: all of the missing bytes are states'.
TEST(ChooseStates, MovesStatesThatTheUpdateHides) {
  const RankChoice choice = choose_states(kCosts, fronts({std::nullopt}));
  EXPECT_EQ(choice.moved, (OffloadedBytes{.optimizer = 400, .parameters = 0}));
  EXPECT_EQ(choice.seconds, 0.0);
  EXPECT_EQ(choice.missing, 0);
}

// Each second of the disk is worth it as long as computing again takes longer.
TEST(ChooseStates, RepeatsWhatIsCheaper) {
  RankCosts slow = kCosts;
  slow.update = 0.0;
  slow.bandwidth = slow.update_rate = 100.0;  // 100 bytes there and back: 2.35 s
  EXPECT_EQ(choose_states(slow, fronts({std::nullopt})).moved.optimizer, 0);
  EXPECT_EQ(choose_states(slow, fronts({std::nullopt})).seconds, 4.0);
  slow.bandwidth = slow.update_rate = 1000.0;
  EXPECT_EQ(choose_states(slow, fronts({std::nullopt})).moved.optimizer, 400);
  EXPECT_NEAR(choose_states(slow, fronts({std::nullopt})).seconds, 0.8 / kUpdateReach, 1e-9);
}

// A fast disk is beside computation for a part of its time, of the last two layers for none.
TEST(ChooseStates, StoresWhatIsCheaper) {
  RankCosts costs = kCosts;
  costs.states = {.optimizer = 0, .parameters = 0};
  costs.bandwidth = 0.0;
  costs.store_rate = 1000.0;
  const auto prices = store_prices(costs.store_rate);
  ASSERT_EQ(prices.size(), 3U);
  const RankChoice choice = choose_states(costs, fronts(prices));
  EXPECT_TRUE(prices[choice.price]);
  EXPECT_NEAR(choice.seconds, kUnhiddenPart * 4 * 0.2, 1e-9);
  costs.store_rate = 10.0;
  EXPECT_NEAR(choose_states(costs, fronts(store_prices(10.0))).seconds, 4.0, 1e-9);
}

// What neither states nor layers can make free is missing.
TEST(ChooseStates, SaysWhatIsMissing) {
  RankCosts costs = kCosts;
  costs.staging = 64;
  costs.excess = 3200 + 1600 - 64 + 800 + 5;
  const RankChoice choice = choose_states(costs, fronts({std::nullopt}));
  EXPECT_EQ(choice.moved, costs.states);
  EXPECT_EQ(choice.missing, 5);
}

// The update's bytes twice over what it reaches of a disk, less its own time; beside computation a
// part of the time that is hidden, and all that is longer.
TEST(AddedSeconds, AreAClosedForm) {
  RankCosts costs = kCosts;
  costs.bandwidth = costs.update_rate = costs.store_rate = 100.0;
  costs.num_microbatches = 2.0;
  const auto update = [](double bytes) { return 2.0 * bytes / kUpdateReach / 100.0; };
  EXPECT_EQ(added_seconds(costs, {.optimizer = 0, .parameters = 0}, 0.0, 0.0), 0.0);
  EXPECT_EQ(added_seconds(costs, {.optimizer = 100, .parameters = 0}, 1.5, 0.0), 3.0);
  EXPECT_NEAR(added_seconds(costs, {.optimizer = 3200, .parameters = 0}, 0.0, 0.0),
              update(3200) - 10.0,
              1e-9);
  EXPECT_NEAR(added_seconds(costs, {.optimizer = 0, .parameters = 1600}, 0.0, 0.0),
              update(1600) - 10.0 + kUnhiddenOfParameters * 32.0,
              1e-9);
  EXPECT_NEAR(added_seconds(costs, {.optimizer = 0, .parameters = 0}, 0.0, 10000.0),
              (400.0 - 200.0) + kUnhiddenPart * 200.0,
              1e-9);
}

}  // namespace
}  // namespace tessera
