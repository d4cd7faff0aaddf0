#include "tessera/program/rank_classes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// A number in which each bit depends on all bits of both: SplitMix64's (Steele et al., 2014).
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  std::uint64_t mixed = hash * 0xD1342543DE82EF95U + value + 0x9E3779B97F4A7C15U;
  mixed = (mixed ^ (mixed >> 30U)) * 0xBF58476D1CE4E5B9U;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94D049BB133111EBU;
  return mixed ^ (mixed >> 31U);
}

// Of the classes of a group's members: equal for equal groups, and for others all but never.
std::uint64_t hash_of(const RankGroups& groups,
                      std::size_t first,
                      std::span<const std::size_t> class_of) {
  std::uint64_t hash = 0;
  for (std::size_t place = 0; place < groups.size; ++place) {
    hash += mix(groups.has_places ? place + 1 : 0, class_of[first + place * groups.stride]);
  }
  return hash;
}

class Refinement {
 public:
  Refinement(std::vector<std::size_t> class_of, std::span<const RankGroups> groups)
      : groups_(groups), class_of_(std::move(class_of)) {
    for (const RankGroups& each : groups) {
      TESSERA_CHECK(class_of_.size() % (each.size * each.stride) == 0,
                    "{} ranks in groups of {} that are {} apart",
                    class_of_.size(),
                    each.size,
                    each.stride);
    }
  }

  std::vector<std::size_t> run() {
    std::size_t num_classes = 0;
    for (std::size_t found = split(); found != num_classes; found = split()) {
      num_classes = found;
    }
    for (const RankGroups& each : groups_) {
      check(each, num_classes);
    }
    return std::move(class_of_);
  }

 private:
  // How many classes there are after it.
  std::size_t split() {
    std::vector<std::uint64_t> hashes;
    hashes.reserve(class_of_.size());
    for (const std::size_t own : class_of_) {
      hashes.push_back(mix(0, own));
    }
    for (const RankGroups& each : groups_) {
      add(each, hashes);
    }
    std::unordered_map<std::uint64_t, std::size_t> classes;
    for (std::size_t rank = 0; rank < class_of_.size(); ++rank) {
      class_of_[rank] = classes.try_emplace(hashes[rank], classes.size()).first->second;
    }
    return classes.size();
  }

  void add(const RankGroups& groups, std::vector<std::uint64_t>& hashes) const {
    std::vector<std::uint64_t> by_group(hashes.size());  // at the group's first rank
    for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
      const std::size_t first = groups.first_of(rank);
      if (first == rank) {
        by_group[rank] = hash_of(groups, rank, class_of_);
      }
      hashes[rank] =
          mix(hashes[rank], by_group[first] + (groups.has_places ? groups.place_of(rank) : 0));
    }
  }

  // That no two different groups have the same hash.
  void check(const RankGroups& groups, std::size_t num_classes) const {
    std::vector<std::vector<std::size_t>> expected(num_classes);
    for (std::size_t rank = 0; rank < class_of_.size(); ++rank) {
      if (groups.first_of(rank) != rank) {
        continue;
      }
      std::vector<std::size_t> members;
      for (std::size_t place = 0; place < groups.size; ++place) {
        members.push_back(class_of_[rank + place * groups.stride]);
      }
      std::vector<std::size_t> sorted = members;
      std::ranges::sort(sorted);
      if (!groups.has_places) {
        members = sorted;
      }
      sorted.erase(std::ranges::unique(sorted).begin(), sorted.end());
      for (const std::size_t each : sorted) {
        if (expected[each].empty()) {
          expected[each] = members;
        }
        TESSERA_CHECK(expected[each] == members,
                      "ranks of class {} have different groups, such as that of rank {}",
                      each,
                      rank);
      }
    }
  }

  std::span<const RankGroups> groups_;
  std::vector<std::size_t> class_of_;
};

// The axes that some channel goes along: there it matters which member of a group a rank is.
std::set<std::string> axes_of_channels(std::span<const CollectiveSequence> classes) {
  std::set<std::string> axes;
  for (const CollectiveSequence& sequence : classes) {
    for (const CollectiveCall& call : sequence.calls) {
      if (call.channel) {
        for (const AxisSize& axis : call.channel->axes) {
          axes.insert(axis.name);
        }
      }
    }
  }
  return axes;
}

}  // namespace

RankGroup group_along(const Mesh& mesh, std::size_t axis, std::size_t rank) {
  const std::array listed = {axis};
  const std::vector<std::int64_t> members = mesh.members(listed, static_cast<std::int64_t>(rank));
  return {members.begin(), members.end()};
}

RankGroups groups_along(const MeshAxis& axis) {
  return {.size = static_cast<std::size_t>(axis.size),
          .stride = static_cast<std::size_t>(axis.stride)};
}

std::vector<std::size_t> refine_classes(std::vector<std::size_t> class_of,
                                        std::span<const RankGroups> groups) {
  return Refinement(std::move(class_of), groups).run();
}

std::vector<RankGroups> groups_of(const Mesh& mesh, std::span<const CollectiveSequence> classes) {
  const std::set<std::string> with_places = axes_of_channels(classes);
  std::vector<RankGroups> groups;
  for (const MeshAxis& axis : mesh.axes) {
    groups.push_back(groups_along(axis));
    groups.back().has_places = with_places.contains(axis.name);
  }
  return groups;
}

}  // namespace tessera
