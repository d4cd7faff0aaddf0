#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/base/thread_team.h"

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
inline Range static_share(const Work& work, std::int64_t part, std::int64_t parts) {
  const std::int64_t cuts = (work.count + work.cut - 1) / work.cut;
  const std::int64_t begin = cuts * part / parts * work.cut;
  const std::int64_t end = cuts * (part + 1) / parts * work.cut;
  return {.begin = std::min(begin, work.count), .end = std::min(end, work.count)};
}

// How many pieces the work is cut into where it is shared: several for each thread, so that those
// that are slow take fewer, but none so small that taking it costs more than doing it; 1 where a
// second thread does not pay.
inline std::int64_t num_pieces(int threads, const Work& work) {
  const std::int64_t total = work.count * work.elements;
  if (threads == 1 || total < 2 * kMinElementsPerThread) {
    return 1;
  }
  constexpr std::int64_t kPiecesPerThread = 8;
  const std::int64_t piece = std::clamp(
      total / (kPiecesPerThread * threads), 2 * kMinElementsPerThread, 16 * kMinElementsPerThread);
  return std::max<std::int64_t>(total / piece, 2);
}

// Calls body(Range) for pieces of the work, on the threads of the team; once, for all of it, on the
// calling thread, where the work is small. Ranges depend on the work and the size of the team
// alone. `body` must not throw.
template <class Body>
void parallel_ranges(ThreadTeam& team, const Work& work, const Body& body) {
  const std::int64_t pieces = num_pieces(team.size(), work);
  team.run(pieces, [&](std::int64_t piece, int /*member*/) {
    const Range share = static_share(work, piece, pieces);
    if (share.begin < share.end) {
      body(share);
    }
  });
}

}  // namespace tessera::cpu
