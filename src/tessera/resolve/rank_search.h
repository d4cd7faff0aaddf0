#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/passes/memory/recompute_choices.h"
#include "tessera/passes/memory/recompute_rule.h"

namespace tessera {

// By layer, the number of a choice of its front.
using ChosenFronts = std::vector<std::size_t>;

// Choices for the layers of a pipeline rank that need least time for their bytes. What is stored of
// a layer is still there while the one after it computes, and again in backward: with what layers
// up to it keep, it has to have room.
class Knapsack {
 public:
  // `weights`: by layer, what a byte that it keeps counts. `granules`: how finely bytes are told
  // apart. `end_of_stores`: from which layer on nothing is to be stored. Borrows the layers.
  Knapsack(const std::vector<LayerChoices>& layers,
           std::vector<double> weights,
           std::size_t end_of_stores,
           std::size_t granules);

  // Where all is kept.
  double all_bytes() const { return all_bytes_; }

  // What is kept and on its way at once, as it counts.
  double bytes_of(const ChosenFronts& chosen) const;

  // Of the least time within so many bytes; the least of each layer where none is.
  ChosenFronts choose(double bytes);

 private:
  void fill(std::size_t room);
  std::size_t granules_of(double bytes) const;

  const std::vector<LayerChoices>& layers_;
  std::vector<double> weights_;
  std::size_t end_of_stores_;
  std::size_t granules_;
  bool stores_ = false;
  double all_bytes_ = 0.0;
  std::vector<double> seconds_;                     // of all layers, by granules that are taken
  std::vector<std::vector<std::uint16_t>> chosen_;  // by layer and granules that are taken then
};

// By layer, the choice that keeps least and stores nothing.
ChosenFronts least_unstored(const std::vector<LayerChoices>& layers);

// What a choice of fronts comes to, of a microbatch.
struct ChosenCosts {
  double seconds = 0.0;
  double repeated = 0.0;
  std::int64_t stored_bytes = 0;
};

ChosenCosts costs_of(const std::vector<LayerChoices>& layers, const ChosenFronts& chosen);

// The layers of a pipeline rank, and between what fits and what does not the search for the most
// that they may keep.
class RankSearch {
 public:
  // `in_flight`: microbatches whose activations are there at once; `turns_at_end`: whether backward
  // follows the forward of the last layer. Both are measured where layers may repeat.
  RankSearch(std::vector<LayerChoices> layers, bool may_repeat, double in_flight, bool turns_at_end)
      : layers_(std::make_unique<std::vector<LayerChoices>>(std::move(layers))),
        may_repeat_(may_repeat),
        spares_last_(turns_at_end),
        in_flight_(in_flight) {}

  // What a rank needs that keeps all, and one that keeps the least and stores nothing.
  void begin(std::int64_t all, std::int64_t least, std::int64_t limit);

  bool is_done() const { return is_done_; }

  void propose_least() { proposed_ = least_unstored(*layers_); }

  // What keeps least when all is stored that may be.
  void propose_smallest() { proposed_.assign(layers_->size(), 0); }

  // The least, but that its last layer keeps all: of one microbatch that is no more than its
  // backward needs, which is the first of all.
  void propose_last();
  void learn_last(std::int64_t bytes, std::int64_t limit);

  // Where a line through what fits and what does not says that it just fits; between what is known
  // already, in the middle.
  void propose(std::int64_t limit);
  void learn(std::int64_t bytes, std::int64_t limit);

  void take_best() { proposed_ = best_; }

  // Sums over ranks are computed again, too, where nothing fits. False: something does.
  bool repeat_sums(std::int64_t limit);

  // Whether what stores most is still to be tried, since nothing fits that was.
  bool lacks_room(std::int64_t limit) const;

  // Single layers that take less time than in the best, of which a line through bytes is no good
  // judge where layers are few: what saves most first, each worth `least` seconds or more. False:
  // there is none to try.
  bool propose_better(std::int64_t limit, double least);
  void learn_better(std::int64_t bytes, std::int64_t limit);

  // Of what is proposed.
  ChosenCosts costs() const { return costs_of(*layers_, proposed_); }

  // Seconds with so many bytes more, as far as what was compiled says how many of them values get.
  double seconds_with(double more);

  // Puts what is proposed into the rules of the rank's layers, by layer.
  void set_rules(std::vector<RecomputeRule>& rules) const;

 private:
  static constexpr double kLeastPart = 0.05;    // of the bracket, that it shrinks by
  static constexpr double kLeastWidth = 0.004;  // of all, that is looked for;
  static constexpr double kStoreWidth = 0.01;   // where things are stored
  static constexpr double kDoubt = 0.05;        // of all, by which bytes of a layer may be wrong

  ChosenFronts all_kept() const;
  std::size_t end_of_sorted() const;

  double least_width() const;

  double seconds_of(const ChosenFronts& chosen) const { return costs_of(*layers_, chosen).seconds; }

  std::unique_ptr<std::vector<LayerChoices>> layers_;  // where the knapsack finds them
  bool may_repeat_;
  bool spares_last_;
  double in_flight_;
  std::vector<double> weights_;   // by layer, of its bytes in the arena
  std::set<ChosenFronts> tried_;  // by propose_better()
  ChosenFronts best_;             // of those that fit
  std::int64_t best_bytes_ = 0;   // of a rank with it
  ChosenFronts refused_;          // the last that did not
  ChosenFronts proposed_;         // to be compiled
  std::size_t end_of_stores_ = 0;
  int num_refused_ = 0;  // one after the other
  bool is_done_ = false;
  bool repeats_sums_ = false;
  double all_bytes_ = 0.0;  // above the least
  std::optional<Knapsack> knapsack_;
  double kept_ = 0.0;  // of the proposed
  double below_ = 0.0;
  double above_ = 0.0;
  std::int64_t below_bytes_ = 0;
  std::int64_t above_bytes_ = 0;
};

}  // namespace tessera
