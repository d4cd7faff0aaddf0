#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tessera {

// The tags of a rank's groups. A group has no MPI communicator of its own, since making one waits
// for every member without a deadline. Each member chooses a tag under which it receives for the
// group, unique among its own, and announces it to the others. Used from several threads.
class GroupTags {
 public:
  // Tags 0 to `last_tag` are there to choose from.
  explicit GroupTags(std::int64_t last_tag) : last_tag_(last_tag) {}

  // A group of which this rank is a member, from choose() to retire().
  struct Ticket {
    std::uint64_t key = 0;  // equal on all members
    int tag = 0;            // under which this rank receives
  };

  // Errors: kUnsupported where no tag is left.
  Ticket choose(std::span<const std::int64_t> members, std::int64_t generation);

  // The tag may be chosen anew with `reuse`: others send nothing to the group any more.
  void retire(const Ticket& ticket, bool reuse);

  // `peer` has announced its tag for a group.
  void learn(std::uint64_t key, std::int64_t peer, int tag);

  // The tag under which `peer` receives for the group, once it has announced it.
  std::optional<int> tag_of(const Ticket& ticket, std::int64_t peer);

 private:
  const std::int64_t last_tag_;

  std::mutex mutex_;  // guards what follows
  int next_tag_ = 0;
  std::vector<int> free_tags_;
  // How often this rank made a group of these members and generation: the next is another one.
  std::map<std::pair<std::vector<std::int64_t>, std::int64_t>, std::int64_t> made_;
  std::map<std::pair<std::uint64_t, std::int64_t>, int> tags_;  // by group's key and peer
};

}  // namespace tessera
