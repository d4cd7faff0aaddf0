#include "tessera/program/rank_classes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace tessera {

RankGroup group_along(const Mesh& mesh, std::size_t axis, std::size_t rank) {
  const std::array listed = {axis};
  const std::vector<std::int64_t> members = mesh.members(listed, static_cast<std::int64_t>(rank));
  return {members.begin(), members.end()};
}

namespace {

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

std::vector<std::size_t> rank_classes(const Mesh& mesh,
                                      std::span<const CollectiveSequence> classes,
                                      std::span<const std::size_t> class_of) {
  const std::set<std::string> places = axes_of_channels(classes);
  std::vector<std::size_t> found(class_of.begin(), class_of.end());
  for (std::size_t num_classes = 0;;) {
    std::map<std::vector<std::size_t>, std::size_t> by_surroundings;
    std::vector<std::size_t> refined(found.size());
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      std::vector<std::size_t> surroundings = {found[rank]};
      for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
        RankGroup members = group_along(mesh, axis, rank);
        const auto own = std::ranges::find(members, rank) - members.begin();
        std::ranges::transform(
            members, members.begin(), [&](std::size_t member) { return found[member]; });
        if (places.contains(mesh.axes[axis].name)) {
          surroundings.push_back(static_cast<std::size_t>(own));
        } else {
          std::ranges::sort(members);
        }
        surroundings.insert(surroundings.end(), members.begin(), members.end());
      }
      refined[rank] = by_surroundings.try_emplace(std::move(surroundings), by_surroundings.size())
                          .first->second;
    }
    found = std::move(refined);
    if (by_surroundings.size() == num_classes) {
      return found;
    }
    num_classes = by_surroundings.size();
  }
}

}  // namespace tessera
