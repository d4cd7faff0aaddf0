#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>

namespace tessera::cpu {

// Elements below which a thread of its own costs more than it saves: some microseconds of work.
inline constexpr std::int64_t kMinElementsPerThread = 16384;

// A half-open part of [0, count).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Work to share: `count` items of `elements` elements each, cut only at multiples of `cut` items.
struct Work {
  std::int64_t count = 0;
  std::int64_t elements = 1;
  std::int64_t cut = 1;
};

// Part `part` of `parts` nearly equal parts of the work; may be empty.
inline Range static_share(const Work& work, int part, int parts) {
  const std::int64_t cuts = (work.count + work.cut - 1) / work.cut;
  const std::int64_t begin = cuts * part / parts * work.cut;
  const std::int64_t end = cuts * (part + 1) / parts * work.cut;
  return {.begin = std::min(begin, work.count), .end = std::min(end, work.count)};
}

// Calls body(Range) once per thread with its static share of the work; on the calling thread alone,
// without a parallel region, where the work is small. `body` must not throw.
template <class Body>
void parallel_ranges(int threads, const Work& work, const Body& body) {
  const std::int64_t useful = work.count * work.elements / kMinElementsPerThread;
  const int team = static_cast<int>(std::min<std::int64_t>(threads, useful));
  if (team <= 1) {
    if (work.count > 0) {
      body(Range{.begin = 0, .end = work.count});
    }
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const Range share = static_share(work, omp_get_thread_num(), omp_get_num_threads());
    if (share.begin < share.end) {
      body(share);
    }
  }
}

}  // namespace tessera::cpu
