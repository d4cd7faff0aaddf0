#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"
#include "tessera/simulate/simulate.h"
#include "tessera/simulate/trace.h"
#include "tessera/simulate/trace_meetings.h"

namespace tessera {

// Bytes of living buffers, all together and by category, by when each step of the order began and
// ended. Buffers live by the order of the calls, as for memory_by_category(): its clock is stream
// 0, and what another stream does counts from when stream 0 has come to it. So the peaks are the
// same.
std::vector<TraceCounter> memory_counters(const Program& program,
                                          const IssueOrder& order,
                                          std::span<const Ticks> begin,
                                          std::span<const Ticks> end);

// The use, 0 to 1, of the link that a class's ranks have on each level on which they talk: sending
// or receiving, whichever is more. `legs` are by class.
std::vector<TraceCounter> link_counters(const RankPrograms& ranks,
                                        const StepTimeline& timeline,
                                        std::size_t of_class,
                                        std::span<const std::vector<TraceLeg>> legs);

}  // namespace tessera
