#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tessera/program/channels.h"
#include "tessera/program/rank_classes.h"
#include "tessera/simulate/resources.h"
#include "tessera/simulate/simulate.h"

namespace tessera {

// Whom the ranks of a class meet: classes, each once, in order.
using ClassGroup = std::vector<std::size_t>;

// The classes into which the ranks of a step fall, with whom each meets.
struct RankClasses {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  struct Class {
    std::size_t program = 0;
    std::size_t first_rank = 0;
    std::size_t num_ranks = 0;
    double slow = 1.0;
    std::vector<ClassGroup> along = {};   // by axis of the mesh
    std::vector<std::size_t> peers = {};  // by channel of its program, the class of its other end
    std::vector<std::size_t> end_of_peer = {};  // likewise, the channel's number there; or kNone
  };

  std::vector<Class> classes;         // by their first ranks
  std::vector<std::size_t> class_of;  // by rank
};

// Errors: as simulate().
RankClasses find_classes(const RankPrograms& ranks, const SimulationOptions& options);

// The rank at the other end of a channel, as far from `rank` as its places are. Errors: kInternal
// where `rank` is at neither end.
std::size_t peer_of(const Mesh& mesh, const ChannelName& channel, std::size_t rank);

// The ranks that share one link of a level; one by one where each has its own.
RankGroups link_groups(const RankPrograms& ranks, std::size_t level);

// How many ranks of each class share something, by class.
using Sharers = std::map<std::size_t, std::int64_t>;

// What each class has, as resources. A rank has a device, the memory of it, and on each level a
// link out and a link in; where a level is shared, that of its group of the level below; and where
// ranks share a host, its cores and memory.
class ClassResources {
 public:
  struct Links {
    Resources::Id out = 0;
    Resources::Id in = 0;
    std::int64_t demand = 0;  // of all ranks of the class at the link
  };

  struct Host {
    Resources::Id cores = 0;
    Resources::Id memory = 0;
    std::int64_t num_ranks = 0;  // of the class
  };

  // The disk of a class's machine: of the host that ranks share, else each rank's own.
  struct Disk {
    Resources::Id id = 0;
    std::int64_t num_ranks = 1;  // of the class that have it
  };

  // Of ranks with so many threads that compute.
  ClassResources(const RankPrograms& ranks,
                 const RankClasses& classes,
                 std::int64_t threads,
                 Resources& resources);

  Resources::Id device(std::size_t c) const { return devices_[c]; }

  Resources::Id memory(std::size_t c) const { return memories_[c]; }

  const Disk& disk(std::size_t c) const { return disks_[c]; }

  const Links& links(std::size_t c, std::size_t level) const { return links_[level][c]; }

  // Null where ranks share no host.
  const Host* host(std::size_t c) const { return hosts_.empty() ? nullptr : &hosts_[c]; }

 private:
  std::vector<Resources::Id> devices_;     // by class
  std::vector<Resources::Id> memories_;    // likewise
  std::vector<std::vector<Links>> links_;  // by level and class
  std::vector<Host> hosts_;                // by class
  std::vector<Disk> disks_;                // by class
};

}  // namespace tessera
