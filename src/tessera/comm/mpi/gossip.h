#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/progress.h"

namespace tessera {

// How far the ranks of a run have come, as they tell each other along their channels. Each keeps
// the number that it knows: it raises it by one when it has itself finished instructions, takes
// over a higher one that it hears, and passes that on. So the number rises only where a rank has
// worked, and reaches every rank. Used from several threads.
class Gossip final : public RunProgress {
 public:
  // A rank raises the number at most every eighth of the deadline.
  explicit Gossip(double deadline_seconds);

  Progress& own() { return own_; }

  // A rank at the other end of a channel, and those that are in a group with this one: they are
  // told as well once there is a channel, since its ends may keep others of their groups waiting.
  void add_peer(std::int64_t peer);
  void add_neighbours(std::span<const std::int64_t> peers);

  // Nobody is told anything any more.
  void forget_peers();

  // A message to these peers.
  struct News {
    std::vector<std::int64_t> peers;
    std::vector<std::byte> bytes = {};
  };

  // What there is to tell by now, if anything.
  std::optional<News> next();

  // `from` has told `bytes`; what is to be passed on, if anything. Errors: kInternal for bytes that
  // no Gossip made.
  std::optional<News> hear(std::int64_t from, std::span<const std::byte> bytes);

  // Where `peer` was when it last told: "at call 9 (B of microbatch 0)".
  std::string place_of(std::int64_t peer) const;

  std::uint64_t finished() const override;

 private:
  News news_for(std::optional<std::int64_t> but) const;

  const std::chrono::duration<double> interval_;
  Progress own_;

  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t number_ = 0;
  std::uint64_t told_finished_ = 0;  // of this rank's instructions, when it last told
  std::string told_place_;
  std::chrono::steady_clock::time_point next_;  // when it may tell again
  std::set<std::int64_t> peers_;                // told
  std::set<std::int64_t> neighbours_;           // told from the first channel on
  std::map<std::int64_t, std::string> places_;  // by peer
};

}  // namespace tessera
