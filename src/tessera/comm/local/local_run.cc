#include "tessera/comm/local/local_run.h"

#include <utility>

#include "tessera/base/machine.h"

namespace tessera {

LocalRun::LocalRun(std::int64_t num_ranks, const WorldOptions& options, std::vector<Level> throttle)
    : options_(options),
      throttle_(std::move(throttle)),
      oversubscribed_(num_ranks > usable_cores()),
      ranks_(static_cast<std::size_t>(num_ranks)) {}

void LocalRun::abort(std::string_view reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (aborted_) {
      return;
    }
    reason_ = reason;
    aborted_ = true;
  }
  for (Rank& rank : ranks_) {
    rank.bell.ring();
  }
}

std::string LocalRun::abort_reason() {
  const std::scoped_lock lock(mutex_);
  return reason_;
}

std::uint64_t LocalRun::finished() const {
  std::uint64_t sum = 0;
  for (const Rank& rank : ranks_) {
    sum += rank.progress.finished();
  }
  return sum;
}

}  // namespace tessera
