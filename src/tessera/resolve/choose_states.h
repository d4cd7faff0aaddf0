#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/passes/memory/offload_states.h"
#include "tessera/passes/memory/recompute_choices.h"

namespace tessera {

// What decides how much of a pipeline rank lies elsewhere. Bytes are of a rank.
struct RankCosts {
  std::int64_t excess = 0;                // of what all need on the device over what it may use
  std::int64_t of_layers = 0;             // that it needs less where layers keep the least,
  std::int64_t of_stores = 0;             // and where they store, too, what they may
  OffloadedBytes states = kNothingMoved;  // that may lie elsewhere
  std::int64_t staging = 0;               // of the device, where any do
  std::int64_t freed_copy = 0;            // of a checkpoint, which states elsewhere do without
  double updated_io = 0.0;  // bytes that the update moves of parameters if all are elsewhere,
  double layers_io = 0.0;   // and layers, in a step
  double update = 0.0;      // seconds of the optimizer's arithmetic
  double microbatch = 0.0;  // seconds of forward and backward
  double num_microbatches = 1.0;
  double in_flight = 1.0;    // microbatches whose activations are there at once
  double bandwidth = 0.0;    // bytes/s to or from where states go,
  double update_rate = 0.0;  // both ways in all,
  double store_rate = 0.0;   // and activations
};

// Of the time in which parameters or activations move beside computation, what the step still gets
// longer by, and of a disk's bandwidth what an update reaches: as docs/reference/benchmarks.md has
// them measured.
inline constexpr double kUnhiddenOfParameters = 0.37;
inline constexpr double kUnhiddenPart = 0.2;
inline constexpr double kUpdateReach = 0.85;

// What a byte costs that is stored and fetched, in seconds, where it is hidden by computation or
// not. None where `rate`, in bytes/s, is 0: nothing may be stored.
std::vector<std::optional<double>> store_prices(double rate);

// How a rank makes room.
struct RankChoice {
  OffloadedBytes moved = kNothingMoved;
  std::size_t price = 0;     // the number of the fronts
  double seconds = 0.0;      // that a step takes longer, by estimate
  std::int64_t missing = 0;  // bytes for which there is no room in any way
};

// What a step takes longer where so many bytes of states are moved and layers do this.
double added_seconds(const RankCosts& costs,
                     const OffloadedBytes& moved,
                     double repeated,
                     double stored_bytes);

// The cheapest way: states to move, and how layers are to be recomputed or stored. `fronts`: the
// layers' choices by price of what is stored (store_prices()); layers may be none.
RankChoice choose_states(const RankCosts& costs,
                         const std::vector<std::vector<LayerChoices>>& fronts);

}  // namespace tessera
