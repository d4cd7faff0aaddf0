#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/simulate/simulate.h"
#include "tessera/simulate/step_timeline.h"
#include "tessera/simulate/ticks.h"

namespace tessera {

// What a second of a step goes by with.
enum class Cause : std::uint8_t {
  kProduct,
  kAttention,
  kStream,  // kernels that read and write memory, folds of collectives among them
  kUpdate,  // kernels of the update, of whatever kind
  kSpread,  // kernels of any kind take longer than a mean rank's, since the slowest sets the pace
  kLaunch,  // nothing runs, since the host has not issued it
  kCollective,  // one that nothing hides, along an axis
  kTransfer,    // one between pipeline ranks that nothing hides, on a level
  kFill,        // a pipeline rank waits for others before its first kernel of a microbatch,
  kDrain,       // after its last one,
  kBubble,      // or between them
  kOthers,      // all of its own is done, and others still run
};

// "products", ...
std::string_view name(Cause cause);

struct CauseRow {
  Cause cause = Cause::kProduct;
  std::size_t where = 0;  // the axis of a collective, in the mesh; the level of a transfer
  Ticks ticks = 0;
  // Of that, where it is a collective or a transfer:
  Ticks latency = 0;
  Ticks moving = 0;  // as long as it takes alone
  Ticks shared = 0;  // as long as it takes more, because others use its links
  Ticks away = 0;    // for ranks that come later; along a pipeline, this is its fill and so on

  friend bool operator==(const CauseRow&, const CauseRow&) = default;
};

// What a class's links do, whether hidden or not.
struct LinkRow {
  bool is_transfer = false;
  std::size_t where = 0;  // as in CauseRow
  Ticks busy = 0;         // of all legs, without what they wait for ranks that come later
  double sent = 0.0;      // bytes, by a rank

  friend bool operator==(const LinkRow&, const LinkRow&) = default;
};

// Where a step's time goes, as the ranks of a class see it. Stream 0 says what goes on while it
// does something; else what it waits for does, and so on. The rows add up to the step, exactly.
struct Attribution {
  std::vector<CauseRow> rows;  // in the order of Cause, then of `where`; none of 0
  std::vector<LinkRow> links;

  Ticks total() const;
};

Attribution attribute(const RankPrograms& ranks,
                      const StepTimeline& timeline,
                      std::size_t of_class);

}  // namespace tessera
