#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/actions/action_table.h"

namespace tessera {

// The cost of the actions of a stage, or of a part of one, in ticks of any length. A backward costs
// both gradients.
struct ActionCosts {
  double forward = 1.0;
  double input_gradient = 1.0;
  double weight_gradient = 1.0;

  friend bool operator==(const ActionCosts&, const ActionCosts&) = default;
};

double duration(const ActionCosts& costs, ActionKind kind);

// Of all three.
double total(const ActionCosts& costs);

// Errors: kInvalidArgument for ticks that are negative or not finite.
void require_ticks(const ActionCosts& costs);

struct TimeSpan {
  double start = 0.0;
  double end = 0.0;

  friend bool operator==(const TimeSpan&, const TimeSpan&) = default;
};

// Of one slice of a table's microbatches, each of which has an equal share of its stage's costs.
double slice_duration(const ActionTable& table, const ActionCosts& costs, ActionKind kind);

// What a rank or a stage holds at most, in slices: forwards whose backward or input gradient has
// not ended, and input gradients whose weight gradient has not ended. Neither depends on costs.
struct PeakHeld {
  std::int64_t forwards = 0;
  std::int64_t weight_gradients = 0;

  friend bool operator==(const PeakHeld&, const PeakHeld&) = default;
};

// When the actions of a table run if every rank does them in order, each as early as it can.
struct Timeline {
  double makespan = 0.0;
  std::vector<std::vector<TimeSpan>> rows;  // as the table's
  std::vector<double> work;                 // by rank: the ticks that it computes
  std::vector<PeakHeld> held_by_rank;
  std::vector<PeakHeld> held_by_stage;
};

// `costs`: by stage. `hop`: ticks from the end of an action to the start of one on another rank
// that waits for it; the ranks compute meanwhile. Ticks that are whole numbers add up exactly (to
// 2^53). Errors: as run_order() of run_order.h; kInvalidArgument for costs that are not one per
// stage, or negative or not finite.
Timeline timeline(const ActionTable& table, std::span<const ActionCosts> costs, double hop = 0.0);

// All microbatches cost a tick in every stage, and a backward two.
Timeline timeline(const ActionTable& table);

// The share of the makespan in which a rank is idle, and in which ranks are on average.
double bubble(const Timeline& timeline, std::int64_t rank);
double bubble(const Timeline& timeline);

// What of bubble() comes from ranks with unequal work: the mean rank waits for the one with the
// most work. The rest is the schedule's.
double imbalance(const Timeline& timeline);

}  // namespace tessera
