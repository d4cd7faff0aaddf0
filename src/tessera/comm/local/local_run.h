#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/bell.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/local/pace.h"
#include "tessera/comm/progress.h"
#include "tessera/mesh/cluster.h"

namespace tessera {

// What the ranks of a run have in common, whatever their groups and channels.
class LocalRun final : public RunProgress {
 public:
  LocalRun(std::int64_t num_ranks, const WorldOptions& options, std::vector<Level> throttle);

  std::int64_t num_ranks() const { return static_cast<std::int64_t>(ranks_.size()); }

  const WorldOptions& options() const { return options_; }

  const std::vector<Level>& throttle() const { return throttle_; }

  // Whether ranks have no cores of their own.
  bool oversubscribed() const { return oversubscribed_; }

  Progress& progress(std::int64_t rank) { return at(rank).progress; }

  Bell& bell(std::int64_t rank) { return at(rank).bell; }

  Links& links() { return links_; }

  void abort(std::string_view reason);

  bool aborted() const { return aborted_; }

  std::string abort_reason();

  std::uint64_t finished() const override;

 private:
  struct alignas(64) Rank {
    Progress progress;
    Bell bell;
  };

  Rank& at(std::int64_t rank) { return ranks_.at(static_cast<std::size_t>(rank)); }

  WorldOptions options_;
  std::vector<Level> throttle_;
  bool oversubscribed_;
  std::vector<Rank> ranks_;
  Links links_;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;  // guards what follows
  std::string reason_;
};

}  // namespace tessera
