#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"
#include "tessera/simulate/simulate.h"
#include "tessera/simulate/step_timeline.h"
#include "tessera/simulate/ticks.h"

namespace tessera {

// What a stream does in a span.
enum class TraceKind : std::uint8_t {
  kProduct,
  kAttention,
  kStream,
  kCollective,
  kSend,
  kReceive,
  kNothing,  // an instruction that here only waits, and is waited for
};

// "product", "attention", "streaming", "collective", "send", "receive", "nothing".
std::string_view name(TraceKind kind);

// "kernel", "away", "latency", "moving", "shared".
std::string_view name(SpanKind part);

// An instruction in a call, as its program numbers and names it.
struct TracePlace {
  std::uint32_t call = 0;
  std::uint32_t instruction = 0;  // of the call's segment
  std::int32_t microbatch = 0;
  std::uint32_t segment = 0;  // into StepTrace::names
  std::uint32_t op = 0;       // likewise
  Action action = Action::kForward;

  friend bool operator==(const TracePlace&, const TracePlace&) = default;
};

struct TraceSpan {
  Ticks begin = 0;
  Ticks end = 0;
  StepIndex step = 0;  // of its program's issue_order()
  TraceKind kind = TraceKind::kStream;
  SpanKind part = SpanKind::kKernel;  // of a leg that was simulated; else kKernel, for all of it

  friend bool operator==(const TraceSpan&, const TraceSpan&) = default;
};

// What a stream did: every step of it has a span, if only one of no length. In order.
struct TraceThread {
  std::string name;
  std::vector<TraceSpan> spans;
};

// From when on a counter has a value.
struct TracePoint {
  Ticks at = 0;
  double value = 0.0;

  friend bool operator==(const TracePoint&, const TracePoint&) = default;
};

struct TraceCounter {
  std::string name;
  std::string unit;
  std::vector<TracePoint> points;  // in order
};

// Equal ranks, or one that was seen.
struct TraceProcess {
  std::string name;  // "rank 0", "rank 0 x1024"
  std::size_t first_rank = 0;
  std::size_t num_ranks = 1;
  std::size_t program = 0;             // into StepTrace::places
  std::vector<TraceThread> threads;    // by stream
  std::vector<TraceCounter> counters;  // memory first
};

// An instant within a span of a thread.
struct TraceEnd {
  std::size_t process = 0;
  std::size_t thread = 0;
  Ticks at = 0;

  friend bool operator==(const TraceEnd&, const TraceEnd&) = default;
};

// Of a meeting: from the last that came to one that waited for it, from a sender to its receiver.
struct TraceArrow {
  TraceEnd from;
  TraceEnd to;

  friend bool operator==(const TraceArrow&, const TraceArrow&) = default;
};

// What the ranks of a step did and when, simulated or seen: places are the same in both.
struct StepTrace {
  Ticks step = 0;                               // when all has ended
  std::vector<std::string> names;               // of segments and ops
  std::vector<std::vector<TracePlace>> places;  // by program, then by step of its issue_order()
  std::vector<TraceProcess> processes;          // by their first ranks
  std::vector<TraceArrow> arrows;

  const TracePlace& place(const TraceProcess& process, const TraceSpan& span) const {
    return places[process.program][span.step];
  }
};

// As of a program: "segment forward, microbatch 0, instruction 3: all_reduce".
std::string place_text(const StepTrace& trace, const TracePlace& place);

// A process for each class of ranks. Beside its memory, counters say which part of a link of each
// level is busy; of a leg that others slow down, the mean of the time that it takes.
StepTrace trace_of(const RankPrograms& ranks, const StepTimeline& timeline);

// When a stream was seen to be at a step.
struct SeenStep {
  Ticks begin = 0;
  Ticks end = 0;
  StepIndex step = 0;
};

// All of a rank's step.
struct SeenRank {
  std::size_t rank = 0;
  const Program& program;
  const IssueOrder& order;
  std::vector<std::vector<SeenStep>> streams;  // in order
};

// A process for each of these ranks of the mesh. Arrows are those of meetings whose ranks are all
// there. Errors: kInternal unless every step of a rank was seen once.
StepTrace trace_of(const Mesh& mesh, std::span<const SeenRank> ranks);

// In the format of Chrome's trace viewer, which Perfetto opens (docs/formats.md).
std::string chrome_json(const StepTrace& trace);

}  // namespace tessera
