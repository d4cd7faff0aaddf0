#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/mesh/cluster.h"

namespace tessera {

// What moving bytes on a level of a cluster takes at least.
struct Pace {
  using Clock = std::chrono::steady_clock;

  std::size_t level = 0;  // its index, innermost first
  std::chrono::duration<double> latency{0};
  double bytes_per_second = 0;  // 0: no limit

  // How long the bytes occupy the link.
  Clock::duration on_link(std::int64_t bytes) const;

  // The same and the latency.
  Clock::duration of(std::int64_t bytes) const;
};

// That of the innermost level inside which all members lie. Nothing where no level holds them.
std::optional<Pace> pace_of(const std::vector<Level>& levels,
                            std::span<const std::int64_t> members);

// The links by which ranks send to each other, of every rank one out and one in per level:
// transfers that share a link go one after the other. Any thread may ask.
class Links {
 public:
  using Clock = Pace::Clock;

  // Two ranks have begun a transfer at `begun`: it occupies the link out of the one and the link
  // into the other from when both are free. When it is done, after the latency.
  Clock::time_point take(const Pace& pace,
                         std::int64_t from,
                         std::int64_t to,
                         std::int64_t bytes,
                         Clock::time_point begun);

 private:
  struct FreeAt {
    Clock::time_point out;
    Clock::time_point in;
  };

  std::mutex mutex_;                                              // guards what follows
  std::map<std::pair<std::int64_t, std::size_t>, FreeAt> links_;  // by rank and level
};

}  // namespace tessera
