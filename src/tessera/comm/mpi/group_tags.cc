#include "tessera/comm/mpi/group_tags.h"

#include <limits>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// A number that is another one for other words, as good as certainly (splitmix64's mixing).
std::uint64_t mixed(std::uint64_t state, std::int64_t word) {
  std::uint64_t z = state + 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(word);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

}  // namespace

GroupTags::Ticket GroupTags::choose(std::span<const std::int64_t> members,
                                    std::int64_t generation) {
  Ticket ticket;
  const std::scoped_lock lock(mutex_);
  const std::vector<std::int64_t> list(members.begin(), members.end());
  ticket.key = mixed(mixed(0, generation), made_[{list, generation}]++);
  for (const std::int64_t member : members) {
    ticket.key = mixed(ticket.key, member);
  }
  if (free_tags_.empty()) {
    TESSERA_REQUIRE(next_tag_ <= last_tag_,
                    ErrorCode::kUnsupported,
                    "more than {} groups at a time: this MPI library has no more tags",
                    last_tag_ + 1);
    free_tags_.push_back(next_tag_++);
  }
  ticket.tag = free_tags_.back();
  free_tags_.pop_back();
  return ticket;
}

void GroupTags::retire(const Ticket& ticket, bool reuse) {
  constexpr std::int64_t kBehindAll = std::numeric_limits<std::int64_t>::max();
  const std::scoped_lock lock(mutex_);
  tags_.erase(tags_.lower_bound({ticket.key, -1}), tags_.upper_bound({ticket.key, kBehindAll}));
  if (reuse) {
    free_tags_.push_back(ticket.tag);
  }
}

void GroupTags::learn(std::uint64_t key, std::int64_t peer, int tag) {
  const std::scoped_lock lock(mutex_);
  tags_[{key, peer}] = tag;
}

std::optional<int> GroupTags::tag_of(const Ticket& ticket, std::int64_t peer) {
  const std::scoped_lock lock(mutex_);
  const auto found = tags_.find({ticket.key, peer});
  return found == tags_.end() ? std::nullopt : std::optional<int>(found->second);
}

}  // namespace tessera
