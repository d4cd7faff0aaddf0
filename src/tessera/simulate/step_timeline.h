#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/program/issue_order.h"
#include "tessera/simulate/ticks.h"

namespace tessera {

// What a stream of a rank does for a while.
enum class SpanKind : std::uint8_t {
  kKernel,
  kAway,     // here, a leg waits for ranks that have not come to it
  kLatency,  // of a leg
  kMoving,   // of a leg, for as long as it takes alone
  kShared,   // of a leg, for as long as it takes more because others use its links
};

struct Span {
  Ticks begin = 0;
  Ticks end = 0;
  StepIndex step = 0;
  std::uint32_t piece = 0;  // of TimedProgram::pieces
  SpanKind kind = SpanKind::kKernel;

  friend bool operator==(const Span&, const Span&) = default;
};

// When equal ranks do what in a step.
struct ClassTimeline {
  std::size_t program = 0;
  std::size_t first_rank = 0;
  std::size_t num_ranks = 0;
  std::vector<Ticks> begin;                // by step of issue_order()
  std::vector<Ticks> end;                  // likewise
  std::vector<std::vector<Span>> streams;  // in order; those of no length are left out

  // When its last step ends.
  Ticks last() const;
};

struct StepTimeline {
  std::vector<ClassTimeline> classes;  // by their first ranks
  std::vector<std::size_t> class_of;   // by rank
  Ticks step = 0;                      // from its begin to the last end of all
  double spread = 1.0;                 // how many times as long kernels take as a mean rank's

  const ClassTimeline& of_rank(std::size_t rank) const { return classes[class_of[rank]]; }

  // The class that ends last; the first of several.
  const ClassTimeline& critical() const;
};

}  // namespace tessera
