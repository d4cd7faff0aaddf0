#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/simulate/ticks.h"
#include "tessera/simulate/trace.h"

namespace tessera {

// Something that time goes by with in two steps, "a" and "b".
struct DifferenceRow {
  std::string what;
  Ticks a = 0;
  Ticks b = 0;
  // Of instructions in the step of a rank that has them; 0: none, or not counted.
  std::int64_t count_a = 0;
  std::int64_t count_b = 0;

  Ticks difference() const { return b - a; }

  friend bool operator==(const DifferenceRow&, const DifferenceRow&) = default;
};

// Two steps. The rows add up to both, exactly.
struct Differences {
  Ticks a = 0;
  Ticks b = 0;
  std::vector<DifferenceRow> rows;  // by their differences, the largest first
};

// Texts for the places of a trace: by program, then by step, as StepTrace::places. Places of the
// same text share a row.
using PlaceTexts = std::vector<std::vector<std::string>>;

// "products", "collectives" and so on; "forward matmul"; and of each place the whole, with the
// first rank of its program where a trace has several.
PlaceTexts texts_of_kinds(const StepTrace& trace);
PlaceTexts texts_of_ops(const StepTrace& trace);
PlaceTexts texts_of_places(const StepTrace& trace);

// What the ranks of a trace do with their step's time, as the mean of them all: while stream 0 does
// something, that is it; else the first other stream that does; else nothing.
struct TraceShares {
  // `weights`: how many ranks each process of the trace counts for; empty: those that it stands
  // for.
  explicit TraceShares(const StepTrace& trace, std::span<const std::size_t> weights = {});

  Ticks step = 0;
  std::vector<std::vector<Ticks>> of_places;  // by program, then by step
  Ticks nothing = 0;                          // step less all of these
};

Differences compare(const TraceShares& a,
                    const PlaceTexts& texts_a,
                    const TraceShares& b,
                    const PlaceTexts& texts_b);

// Puts the rows that differ most first.
void sort_rows(Differences& differences);

struct DifferenceHeads {
  std::string_view what;
  std::string_view a;
  std::string_view b;
};

// A table of the first `num_rows` rows, the sum of the others, and that of all.
std::string differences_text(const Differences& differences,
                             const DifferenceHeads& heads,
                             std::size_t num_rows);

// The first place of a program of `a` that one of `b` does not have at the same step, in words; ""
// where they have the same.
std::string first_other_place(const StepTrace& a,
                              std::size_t program_a,
                              const StepTrace& b,
                              std::size_t program_b);

}  // namespace tessera
