#include "tessera/comm/wait_limit.h"

namespace tessera {
namespace {

using Seconds = std::chrono::duration<double>;

// Parts of the deadline in which progress is looked for.
constexpr double kLooks = 8;

}  // namespace

WaitLimit::WaitLimit(const WorldOptions& options, const RunProgress* progress)
    : options_(options), progress_(progress), finished_(finished()) {
  renew();
}

void WaitLimit::renew() {
  start_ = Clock::now();
  last_progress_ = start_;
  next_look_ = start_ + std::chrono::duration_cast<Clock::duration>(
                            Seconds(options_.deadline_seconds / kLooks));
}

bool WaitLimit::is_over() {
  const Clock::time_point now = Clock::now();
  const double patience = options_.patience_seconds();
  if (patience < options_.deadline_seconds) {
    return now - start_ > Seconds(patience);
  }
  const auto has_lasted = [&] { return now - last_progress_ > Seconds(patience); };
  if (now >= next_look_ || has_lasted()) {
    next_look_ = now + std::chrono::duration_cast<Clock::duration>(Seconds(patience / kLooks));
    if (const std::uint64_t found = finished(); found != finished_) {
      finished_ = found;
      last_progress_ = now;
    }
  }
  return has_lasted();
}

}  // namespace tessera
