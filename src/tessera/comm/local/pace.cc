#include "tessera/comm/local/pace.h"

#include <algorithm>

namespace tessera {
namespace {

using Clock = Pace::Clock;

Clock::duration rounded(std::chrono::duration<double> seconds) {
  return std::chrono::round<Clock::duration>(seconds);
}

}  // namespace

Clock::duration Pace::on_link(std::int64_t bytes) const {
  const double seconds = bytes_per_second > 0 ? static_cast<double>(bytes) / bytes_per_second : 0.0;
  return rounded(std::chrono::duration<double>(seconds));
}

Clock::duration Pace::of(std::int64_t bytes) const {
  return on_link(bytes) + rounded(latency);
}

std::optional<Pace> pace_of(const std::vector<Level>& levels,
                            std::span<const std::int64_t> members) {
  std::int64_t inside = 1;  // devices of a group of the level below
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const Level& level = levels[i];
    const std::int64_t devices = inside * level.size;
    const bool shared_by_all = std::ranges::all_of(
        members, [&](std::int64_t rank) { return rank / devices == members.front() / devices; });
    if (shared_by_all) {
      const auto per_link = static_cast<double>(level.shared ? inside : 1);
      return Pace{.level = i,
                  .latency = std::chrono::duration<double>(level.latency),
                  .bytes_per_second = level.bandwidth / per_link};
    }
    inside = devices;
  }
  return std::nullopt;
}

Clock::time_point Links::take(const Pace& pace,
                              std::int64_t from,
                              std::int64_t to,
                              std::int64_t bytes,
                              Clock::time_point begun) {
  const std::scoped_lock lock(mutex_);
  Clock::time_point& out = links_[{from, pace.level}].out;
  Clock::time_point& in = links_[{to, pace.level}].in;
  const Clock::time_point end = std::max({begun, out, in}) + pace.on_link(bytes);
  out = end;
  in = end;
  return end + rounded(pace.latency);
}

}  // namespace tessera
