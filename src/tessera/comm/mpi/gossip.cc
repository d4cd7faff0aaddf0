#include "tessera/comm/mpi/gossip.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Of a place, so that MPI sends a message without waiting for the receiver.
constexpr std::size_t kMaxPlace = 200;

}  // namespace

Gossip::Gossip(double deadline_seconds) : interval_(deadline_seconds / 8) {}

void Gossip::add_peer(std::int64_t peer) {
  const std::scoped_lock lock(mutex_);
  peers_.insert(peer);
  peers_.merge(neighbours_);
}

void Gossip::add_neighbours(std::span<const std::int64_t> peers) {
  const std::scoped_lock lock(mutex_);
  (peers_.empty() ? neighbours_ : peers_).insert(peers.begin(), peers.end());
}

void Gossip::forget_peers() {
  const std::scoped_lock lock(mutex_);
  peers_.clear();
}

// The number, then this rank's place.
Gossip::News Gossip::news_for(std::optional<std::int64_t> but) const {
  const std::string place = own_.place().substr(0, kMaxPlace);
  News news;
  std::ranges::copy_if(
      peers_, std::back_inserter(news.peers), [&](std::int64_t peer) { return peer != but; });
  news.bytes.resize(sizeof number_ + place.size());
  std::memcpy(news.bytes.data(), &number_, sizeof number_);
  std::memcpy(news.bytes.data() + sizeof number_, place.data(), place.size());
  return news;
}

std::optional<Gossip::News> Gossip::next() {
  const std::uint64_t finished = own_.finished();
  const Clock::time_point now = Clock::now();
  const std::scoped_lock lock(mutex_);
  if (now < next_) {
    return std::nullopt;
  }
  const bool has_worked = finished != told_finished_;
  std::string place = own_.place();
  if (!has_worked && place == told_place_) {
    return std::nullopt;
  }
  number_ += has_worked ? 1 : 0;
  told_finished_ = finished;
  told_place_ = std::move(place);
  next_ = now + std::chrono::duration_cast<Clock::duration>(interval_);
  return news_for(std::nullopt);
}

std::optional<Gossip::News> Gossip::hear(std::int64_t from, std::span<const std::byte> bytes) {
  std::uint64_t number = 0;
  TESSERA_CHECK(bytes.size() >= sizeof number, "a control message of {} bytes", bytes.size());
  std::memcpy(&number, bytes.data(), sizeof number);
  const auto place = bytes.subspan(sizeof number);
  const std::scoped_lock lock(mutex_);
  places_[from].assign(reinterpret_cast<const char*>(place.data()), place.size());
  if (number <= number_) {
    return std::nullopt;
  }
  number_ = number;
  return news_for(from);
}

std::string Gossip::place_of(std::int64_t peer) const {
  const std::scoped_lock lock(mutex_);
  const auto found = places_.find(peer);
  return found == places_.end() ? "not heard of" : found->second;
}

std::uint64_t Gossip::finished() const {
  const std::uint64_t own = own_.finished();
  const std::scoped_lock lock(mutex_);
  return number_ + own;
}

}  // namespace tessera
