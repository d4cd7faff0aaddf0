#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/program/channels.h"
#include "tessera/simulate/step_timeline.h"
#include "tessera/simulate/timed_program.h"
#include "tessera/simulate/trace.h"

namespace tessera {

// When a stream of a process talks to others.
struct TraceVisit {
  std::size_t thread = 0;
  Ticks came = 0;
  Ticks left = 0;
};

// All that a process talks, in the order of each stream.
struct TraceTalks {
  // A stream, and the axes of the mesh along which it talks.
  using Group = std::pair<std::size_t, std::vector<std::size_t>>;

  std::size_t first_rank = 0;
  std::map<Group, std::vector<TraceVisit>> collectives = {};
  std::map<ChannelName, std::vector<TraceVisit>> sends = {};
  std::map<ChannelName, std::vector<TraceVisit>> receives = {};
};

inline constexpr std::size_t kNoProcess = static_cast<std::size_t>(-1);

// Of all meetings of the processes; `process_of` is by rank of the mesh, kNoProcess of those that
// are not there.
std::vector<TraceArrow> meeting_arrows(const Mesh& mesh,
                                       std::span<const std::size_t> process_of,
                                       std::span<const TraceTalks> talks);

// A leg in a simulated step, of a class.
struct TraceLeg {
  std::size_t thread = 0;
  std::uint32_t piece = 0;  // of TimedProgram::pieces
  Ticks came = 0;
  Ticks moves = 0;  // when its latency has passed
  Ticks left = 0;
};

// Of all streams, one after the other, each in order.
std::vector<TraceLeg> legs_of(const TimedProgram& program, const ClassTimeline& timeline);

TraceTalks talks_of(const TimedProgram& program,
                    const ClassTimeline& timeline,
                    std::span<const TraceLeg> legs);

TraceTalks talks_of(const Mesh& mesh, const SeenRank& seen);

}  // namespace tessera
