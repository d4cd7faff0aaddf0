#include "tessera/simulate/class_links.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// No more can be told apart from enough for all.
constexpr std::int64_t kMostCores = std::int64_t{1} << 16;

std::size_t num_ranks_of(const RankPrograms& ranks) {
  return static_cast<std::size_t>(ranks.mesh.num_ranks());
}

RankGroups host_groups(const RankPrograms& ranks) {
  return {.size = num_ranks_of(ranks)};
}

bool has_host(const RankPrograms& ranks) {
  return ranks.cluster.host.cores > 0;
}

// The groups in which ranks meet, or that share something.
std::vector<RankGroups> groups_of(const RankPrograms& ranks) {
  std::set<std::size_t> talks;
  std::set<std::string> with_places;
  for (const TimedProgram& program : ranks.programs) {
    for (const Piece& piece : program.pieces) {
      if (piece.kind == PieceKind::kCollective) {
        talks.insert(piece.partners);
      }
    }
    for (const ChannelName& channel : program.channels) {
      for (const AxisSize& axis : channel.first) {
        with_places.insert(axis.name);
      }
    }
  }
  std::vector<RankGroups> groups;
  for (std::size_t i = 0; i < ranks.mesh.axes.size(); ++i) {
    const MeshAxis& axis = ranks.mesh.axes[i];
    const bool has_places = with_places.contains(axis.name);
    if (has_places || talks.contains(i)) {
      groups.push_back(groups_along(axis));
      groups.back().has_places = has_places;
    }
  }
  for (std::size_t level = 0; level < ranks.cluster.levels.size(); ++level) {
    groups.push_back(link_groups(ranks, level));
  }
  if (has_host(ranks)) {
    groups.push_back(host_groups(ranks));
  }
  std::erase_if(groups, [](const RankGroups& each) { return each.size == 1; });
  return groups;
}

double slowness(const SimulationOptions& options, std::size_t rank) {
  const auto found = options.slow.find(static_cast<std::int64_t>(rank));
  return found == options.slow.end() ? 1.0 : found->second;
}

void require_slow_ranks(const RankPrograms& ranks, const SimulationOptions& options) {
  for (const auto& [rank, factor] : options.slow) {
    TESSERA_REQUIRE(rank >= 0 && rank < ranks.mesh.num_ranks(),
                    ErrorCode::kInvalidArgument,
                    "slow rank {} (--slow): expected one of the ranks 0 to {}",
                    rank,
                    ranks.mesh.num_ranks() - 1);
    TESSERA_REQUIRE(factor >= kLeastSlow && factor <= kMostSlow,
                    ErrorCode::kInvalidArgument,
                    "slow rank {} (--slow) takes {} times as long: expected {} to {}",
                    rank,
                    factor,
                    kLeastSlow,
                    kMostSlow);
  }
}

// How many ranks of each class are in the group of `rank`.
Sharers sharers_of(const RankGroups& groups, std::size_t rank, const RankClasses& classes) {
  Sharers sharers;
  const std::size_t first = groups.first_of(rank);
  for (std::size_t place = 0; place < groups.size; ++place) {
    ++sharers[classes.class_of[first + place * groups.stride]];
  }
  return sharers;
}

ClassGroup classes_along(const MeshAxis& axis, std::size_t rank, const RankClasses& classes) {
  ClassGroup group;
  for (const auto& [c, count] : sharers_of(groups_along(axis), rank, classes)) {
    group.push_back(c);
  }
  return group;
}

// A resource for all groups that are shared alike.
Resources::Id resource_of(const Sharers& sharers,
                          std::map<Sharers, Resources::Id>& found,
                          Resources& resources,
                          std::int64_t capacity) {
  const auto [each, is_new] = found.try_emplace(sharers, Resources::Id{0});
  if (is_new) {
    each->second = resources.add(capacity);
  }
  return each->second;
}

}  // namespace

std::size_t peer_of(const Mesh& mesh, const ChannelName& channel, std::size_t rank) {
  std::vector<std::size_t> listed;
  for (const AxisSize& axis : channel.first) {
    const auto found = std::ranges::find(mesh.axes, axis.name, &MeshAxis::name);
    TESSERA_CHECK(
        found != mesh.axes.end(), "a channel along axis {}, which the mesh lacks", axis.name);
    listed.push_back(static_cast<std::size_t>(found - mesh.axes.begin()));
  }
  const std::vector<std::int64_t> members = mesh.members(listed, static_cast<std::int64_t>(rank));
  const auto member = [&](std::int64_t place) {
    TESSERA_CHECK(place >= 0 && place < std::ssize(members),
                  "rank {} talks to place {} of {}",
                  rank,
                  place,
                  members.size());
    return static_cast<std::size_t>(members[static_cast<std::size_t>(place)]);
  };
  const std::size_t from = member(channel.second.from);
  const std::size_t to = member(channel.second.to);
  TESSERA_CHECK(from == rank || to == rank,
                "rank {} uses an end of the channel from rank {} to rank {}",
                rank,
                from,
                to);
  return from == rank ? to : from;
}

RankGroups link_groups(const RankPrograms& ranks, std::size_t level) {
  std::size_t size = 1;
  for (std::size_t below = 0; below < level && ranks.cluster.levels[level].shared; ++below) {
    size *= static_cast<std::size_t>(ranks.cluster.levels[below].size);
  }
  return {.size = std::min(size, num_ranks_of(ranks))};
}

RankClasses find_classes(const RankPrograms& ranks, const SimulationOptions& options) {
  require_slow_ranks(ranks, options);
  TESSERA_CHECK(ranks.program_of.size() == num_ranks_of(ranks),
                "{} ranks with a program, expected {}",
                ranks.program_of.size(),
                num_ranks_of(ranks));
  std::map<std::pair<std::size_t, double>, std::size_t> kinds;
  std::vector<std::size_t> class_of;
  for (std::size_t rank = 0; rank < ranks.program_of.size(); ++rank) {
    class_of.push_back(
        kinds.try_emplace({ranks.program_of[rank], slowness(options, rank)}, kinds.size())
            .first->second);
  }
  RankClasses result;
  result.class_of = refine_classes(std::move(class_of), groups_of(ranks));
  for (std::size_t rank = 0; rank < result.class_of.size(); ++rank) {
    if (result.class_of[rank] == result.classes.size()) {
      result.classes.push_back(
          {.program = ranks.program_of[rank], .first_rank = rank, .slow = slowness(options, rank)});
    }
    ++result.classes[result.class_of[rank]].num_ranks;
  }
  for (RankClasses::Class& each : result.classes) {
    for (const MeshAxis& axis : ranks.mesh.axes) {
      each.along.push_back(classes_along(axis, each.first_rank, result));
    }
    for (const ChannelName& channel : ranks.programs[each.program].channels) {
      const std::size_t peer = result.class_of[peer_of(ranks.mesh, channel, each.first_rank)];
      const std::vector<ChannelName>& theirs =
          ranks.programs[result.classes[peer].program].channels;
      const auto end = std::ranges::find(theirs, channel);
      each.peers.push_back(peer);
      each.end_of_peer.push_back(end == theirs.end()
                                     ? RankClasses::kNone
                                     : static_cast<std::size_t>(end - theirs.begin()));
    }
  }
  return result;
}

ClassResources::ClassResources(const RankPrograms& ranks,
                               const RankClasses& classes,
                               std::int64_t threads,
                               Resources& resources) {
  for (std::size_t c = 0; c < classes.classes.size(); ++c) {
    devices_.push_back(resources.add(Piece::kWhole));
    memories_.push_back(resources.add(Piece::kWhole));
  }
  for (std::size_t level = 0; level < ranks.cluster.levels.size(); ++level) {
    std::map<Sharers, Resources::Id> out;
    std::map<Sharers, Resources::Id> in;
    std::vector<Links>& links = links_.emplace_back();
    for (std::size_t c = 0; c < classes.classes.size(); ++c) {
      const Sharers sharers =
          sharers_of(link_groups(ranks, level), classes.classes[c].first_rank, classes);
      links.push_back({.out = resource_of(sharers, out, resources, Piece::kWhole),
                       .in = resource_of(sharers, in, resources, Piece::kWhole),
                       .demand = sharers.at(c) * Piece::kWhole});
    }
  }
  const Resources::Id shared_disk = has_host(ranks) ? resources.add(Piece::kWhole) : 0;
  for (const RankClasses::Class& each : classes.classes) {
    disks_.push_back(has_host(ranks) ? Disk{.id = shared_disk,
                                            .num_ranks = static_cast<std::int64_t>(each.num_ranks)}
                                     : Disk{.id = resources.add(Piece::kWhole)});
  }
  if (!has_host(ranks)) {
    return;
  }
  const HostSpec& host = ranks.cluster.host;
  const Resources::Id cores = resources.add(std::min(host.cores, kMostCores) * Piece::kWhole);
  // What a rank that is alone has of the memory is the whole of its own share.
  const double own = device_of(ranks.cluster, threads).memory_bandwidth;
  const double shared = host.memory_bandwidth > 0.0 ? host.memory_bandwidth / own : 1.0;
  const double capacity = std::clamp(shared, 1.0, static_cast<double>(classes.class_of.size()));
  const Resources::Id memory =
      resources.add(std::llround(capacity * static_cast<double>(Piece::kWhole)));
  for (const RankClasses::Class& each : classes.classes) {
    hosts_.push_back(
        {.cores = cores, .memory = memory, .num_ranks = static_cast<std::int64_t>(each.num_ranks)});
  }
}

}  // namespace tessera
