#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tessera {

// What is known of a plan before it is compiled.
struct PlanBound {
  double seconds = 0.0;     // no step of it is shorter
  bool fits = true;         // false: it takes more memory than there is, for certain
  std::int64_t memory = 0;  // bytes that a rank takes at least
  bool is_refused = false;  // there is no such plan
};

// A plan, compiled and simulated.
struct PlanOutcome {
  bool is_refused = false;
  bool fits = true;
  std::int64_t memory = 0;  // bytes of the rank that takes most
  std::int64_t limit = 0;   // bytes that it may take; 0: not known
  double seconds = 0.0;     // of the step; where it fits
};

// Plans, by their numbers. The functions may be called by several threads at once, and say the same
// of a plan whenever they are asked.
struct SearchProblem {
  std::size_t size = 0;
  int num_bounds = 1;  // from the cheapest to the tightest
  std::function<PlanBound(std::size_t plan, int bound)> bound;
  std::function<PlanOutcome(std::size_t plan)> evaluate;
  // Plans whose bounds are about equally far below what they bound.
  std::function<std::size_t(std::size_t plan)> kind = [](std::size_t /*plan*/) {
    return std::size_t{0};
  };
  // Plans whose memory is about equally far above its bound, and which may take equally much.
  std::function<std::size_t(std::size_t plan)> memory_kind = [](std::size_t plan) { return plan; };
  // Evaluated before all others.
  std::optional<std::size_t> own = std::nullopt;
  // Plans, each once, that are likely to fit. Where half of the time has found none that does, they
  // are evaluated until one is: those first that may be fastest.
  std::vector<std::size_t> plain = {};
};

struct SearchOptions {
  double seconds = 10.0;  // after which nothing more is begun
  int threads = 1;
  bool exhaustive = false;  // evaluate every plan, however long it takes
};

struct SearchResult {
  std::vector<std::optional<PlanOutcome>> outcomes;  // by plan; of those that were evaluated
  std::vector<PlanBound> bounds;                     // by plan, the tightest that was asked for
  std::optional<std::size_t> fastest;
  double lower = 0.0;          // no plan that fits is faster
  bool ran_out = false;        // of time, before that was the fastest plan's
  std::int64_t refused = 0;    // plans that do not exist
  std::int64_t too_large = 0;  // plans that do not fit
  std::int64_t cut = 0;        // plans that a bound left out
  std::int64_t open = 0;       // plans that may be faster still, where time ran out
  std::int64_t simulated = 0;
};

// Best first: what may be fastest is looked at more closely, by the next bound or, after the last
// one, by evaluating it, until nothing that is left may be faster than the fastest. How many
// threads there are changes nothing, but how far it comes in the time.
SearchResult search(const SearchProblem& problem, const SearchOptions& options);

}  // namespace tessera
