#include "tessera/mesh/mesh.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t kNumGroups = 4;

struct GroupDegree {
  AxisGroup group;
  std::int64_t degree;
};

// Innermost first.
std::array<GroupDegree, kNumGroups> in_order(const MeshDegrees& degrees) {
  return {{{AxisGroup::kTensor, degrees.tensor},
           {AxisGroup::kContext, degrees.context},
           {AxisGroup::kData, degrees.data},
           {AxisGroup::kPipeline, degrees.pipeline}}};
}

// "tensor 2 x data 6": the degrees above 1; "data 1" where there is none.
std::string describe(const MeshDegrees& degrees) {
  std::string text;
  for (const auto& [group, degree] : in_order(degrees)) {
    if (degree != 1) {
      text += format("{}{} {}", text.empty() ? "" : " x ", to_string(group), degree);
    }
  }
  return text.empty() ? "data 1" : text;
}

// Product of the degrees. Errors: kInvalidConfig for a degree below 1 or more ranks than devices.
std::int64_t count_ranks(const Cluster& cluster, const MeshDegrees& degrees) {
  const std::int64_t devices = cluster.num_devices();
  std::int64_t ranks = 1;
  for (const auto& [group, degree] : in_order(degrees)) {
    TESSERA_REQUIRE(degree >= 1,
                    ErrorCode::kInvalidConfig,
                    "{} degree {}, expected at least 1",
                    to_string(group),
                    degree);
    TESSERA_REQUIRE(degree <= devices / ranks,
                    ErrorCode::kInvalidConfig,
                    "{} needs more ranks than the {} devices of cluster \"{}\"; lower a degree or "
                    "name a larger cluster",
                    describe(degrees),
                    devices,
                    cluster.name);
    ranks *= degree;
  }
  return ranks;
}

struct PresentRanks {
  std::vector<std::int64_t> sizes;        // of each level, in groups of the level below
  std::optional<std::size_t> unfilled{};  // a level of which the ranks do not fill whole groups
};

// Spreads the ranks over the levels, inside out: whole groups of each level, and of the outermost
// that they reach as many groups of the level below as there are.
PresentRanks spread(std::int64_t ranks, const Cluster& cluster) {
  PresentRanks present;
  std::int64_t left = ranks;
  for (const Level& level : cluster.levels) {
    const std::int64_t size = std::min(left, level.size);
    if (left % size != 0) {
      present.unfilled = present.sizes.size();
      return present;
    }
    present.sizes.push_back(size);
    left /= size;
  }
  return present;
}

// The sizes of the levels as far as ranks are present. Errors: kInvalidConfig where the ranks do
// not fill whole groups.
std::vector<std::int64_t> present_sizes(const Cluster& cluster, const MeshDegrees& degrees) {
  const std::int64_t ranks = count_ranks(cluster, degrees);
  PresentRanks present = spread(ranks, cluster);
  if (present.unfilled) {
    std::int64_t group_size = 1;
    for (std::size_t i = 0; i <= *present.unfilled; ++i) {
      group_size *= cluster.levels[i].size;
    }
    // One rank and all devices fill whole groups: both searches end.
    std::int64_t fewer = ranks - 1;
    while (spread(fewer, cluster).unfilled) {
      --fewer;
    }
    std::int64_t more = ranks + 1;
    while (spread(more, cluster).unfilled) {
      ++more;
    }
    fail(ErrorCode::kInvalidConfig,
         "{} is {} ranks, which do not fill whole groups of {} devices (level \"{}\" of cluster "
         "\"{}\"); {} or {} ranks would",
         describe(degrees),
         ranks,
         group_size,
         cluster.levels[*present.unfilled].name,
         cluster.name,
         fewer,
         more);
  }
  return present.sizes;
}

// The degrees that the next group can have where `sizes` is left of the levels: whole levels from
// inside out, then a divisor of the next. At most 16 of them, as a list for a message.
std::string possible_degrees(std::span<const std::int64_t> sizes) {
  constexpr std::size_t kMaxListed = 16;
  std::vector<std::int64_t> degrees = {1};
  std::int64_t inner = 1;
  for (const std::int64_t size : sizes) {
    for (std::int64_t part = 2; part <= size; ++part) {
      if (size % part == 0) {
        degrees.push_back(inner * part);
      }
    }
    inner *= size;
  }
  const std::size_t listed = std::min(degrees.size(), kMaxListed);
  std::string text;
  for (std::size_t i = 0; i < listed; ++i) {
    text += format("{}{}", i == 0 ? "" : ", ", degrees[i]);
  }
  return listed < degrees.size() ? format("{}, ..., {}", text, degrees.back()) : text;
}

// Takes `degree` out of `sizes`, what is left of each level, inside out. Returns what each level
// gave. Errors: kInvalidConfig where the degree and the rest of a level do not divide each other.
std::vector<std::int64_t> take(std::vector<std::int64_t>& sizes,
                               const GroupDegree& wanted,
                               const Cluster& cluster) {
  const std::vector<std::int64_t> before = sizes;
  std::vector<std::int64_t> taken(sizes.size(), 1);
  std::int64_t left = wanted.degree;
  for (std::size_t i = 0; i < sizes.size() && left > 1; ++i) {
    taken[i] = std::min(left, sizes[i]);
    TESSERA_REQUIRE(left % taken[i] == 0 && sizes[i] % taken[i] == 0,
                    ErrorCode::kInvalidConfig,
                    "{} degree {} does not fit the levels of cluster \"{}\": {} ranks to place on "
                    "the {} that are left of level \"{}\"; among as many ranks these would fit: {}",
                    to_string(wanted.group),
                    wanted.degree,
                    cluster.name,
                    left,
                    sizes[i],
                    cluster.levels[i].name,
                    possible_degrees(before));
    left /= taken[i];
    sizes[i] /= taken[i];
  }
  TESSERA_CHECK(left == 1,
                "{} of {} ranks of {} found no level",
                left,
                wanted.degree,
                to_string(wanted.group));
  return taken;
}

// The degrees that experts can have: whole axes from inside out, then a divisor of the next.
std::string possible_experts(const Mesh& mesh) {
  std::vector<std::int64_t> sizes;
  for (const MeshAxis& axis : mesh.axes) {
    if (axis.group == AxisGroup::kContext || axis.group == AxisGroup::kData) {
      sizes.push_back(axis.size);
    }
  }
  return possible_degrees(sizes);
}

// Marks the axes that hold `degree` experts' ranks, and cuts the last one where it holds more.
void place_experts(Mesh& mesh, std::int64_t degree) {
  const auto refuse = [&] {
    fail(ErrorCode::kInvalidConfig,
         "expert degree {} does not fit the context and data ranks; these would: {}",
         degree,
         possible_experts(mesh));
  };
  if (degree < 1) {
    refuse();
  }
  std::int64_t left = degree;
  for (std::size_t i = 0; i < mesh.axes.size() && left > 1; ++i) {
    if (mesh.axes[i].group != AxisGroup::kContext && mesh.axes[i].group != AxisGroup::kData) {
      continue;
    }
    const std::int64_t size = mesh.axes[i].size;
    const std::int64_t taken = std::min(left, size);
    if (left % taken != 0 || size % taken != 0) {
      refuse();
    }
    if (taken < size) {
      MeshAxis inner = mesh.axes[i];
      inner.name += ".expert";
      inner.size = taken;
      mesh.axes[i].size /= taken;
      mesh.axes[i].stride *= taken;
      mesh.axes.insert(mesh.axes.begin() + static_cast<std::ptrdiff_t>(i), std::move(inner));
    }
    mesh.axes[i].expert = true;
    left /= taken;
  }
  if (left > 1) {
    refuse();
  }
}

void check_axes(const Mesh& mesh, std::span<const std::size_t> axes) {
  std::vector<bool> seen(mesh.axes.size());
  for (const std::size_t axis : axes) {
    TESSERA_REQUIRE(axis < mesh.axes.size(),
                    ErrorCode::kInvalidArgument,
                    "axis {} of a mesh of {} axes",
                    axis,
                    mesh.axes.size());
    TESSERA_REQUIRE(!seen[axis],
                    ErrorCode::kInvalidArgument,
                    "axis \"{}\" is listed twice",
                    mesh.axes[axis].name);
    seen[axis] = true;
  }
}

}  // namespace

std::string_view to_string(AxisGroup group) {
  switch (group) {
    case AxisGroup::kTensor:
      return "tensor";
    case AxisGroup::kContext:
      return "context";
    case AxisGroup::kData:
      return "data";
    case AxisGroup::kPipeline:
      return "pipeline";
  }
  return "unknown group";
}

std::int64_t Mesh::num_ranks() const {
  std::int64_t product = 1;
  for (const MeshAxis& axis : axes) {
    product *= axis.size;
  }
  return product;
}

std::vector<std::int64_t> Mesh::coordinates(std::int64_t rank) const {
  TESSERA_REQUIRE(rank >= 0 && rank < num_ranks(),
                  ErrorCode::kInvalidArgument,
                  "rank {} of a mesh of {} ranks",
                  rank,
                  num_ranks());
  std::vector<std::int64_t> digits;
  digits.reserve(axes.size());
  for (const MeshAxis& axis : axes) {
    digits.push_back(rank / axis.stride % axis.size);
  }
  return digits;
}

std::int64_t Mesh::rank_at(std::span<const std::int64_t> coordinates) const {
  TESSERA_REQUIRE(coordinates.size() == axes.size(),
                  ErrorCode::kInvalidArgument,
                  "{} coordinates for a mesh of {} axes",
                  coordinates.size(),
                  axes.size());
  std::int64_t rank = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    TESSERA_REQUIRE(coordinates[i] >= 0 && coordinates[i] < axes[i].size,
                    ErrorCode::kInvalidArgument,
                    "coordinate {} on axis \"{}\" of size {}",
                    coordinates[i],
                    axes[i].name,
                    axes[i].size);
    rank += coordinates[i] * axes[i].stride;
  }
  return rank;
}

std::vector<std::int64_t> Mesh::members(std::span<const std::size_t> listed,
                                        std::int64_t rank) const {
  check_axes(*this, listed);
  const std::vector<std::int64_t> own = coordinates(rank);
  std::int64_t first = rank;
  for (const std::size_t axis : listed) {
    first -= own[axis] * axes[axis].stride;
  }
  std::vector<std::int64_t> ranks = {first};
  for (const std::size_t axis : listed) {
    const std::size_t inner = ranks.size();
    for (std::int64_t digit = 1; digit < axes[axis].size; ++digit) {
      for (std::size_t i = 0; i < inner; ++i) {
        ranks.push_back(ranks[i] + digit * axes[axis].stride);
      }
    }
  }
  return ranks;
}

Mesh make_mesh(const Cluster& cluster, const MeshDegrees& degrees) {
  std::vector<std::int64_t> left = present_sizes(cluster, degrees);
  Mesh mesh;
  for (const Level& level : cluster.levels) {
    mesh.levels.push_back(level.name);
  }
  std::int64_t stride = 1;
  for (const GroupDegree& wanted : in_order(degrees)) {
    const std::vector<std::int64_t> taken = take(left, wanted, cluster);
    const bool alone = std::ranges::count(taken, 1) + 1 >= std::ssize(taken);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] == 1) {
        continue;
      }
      const std::string_view group = to_string(wanted.group);
      mesh.axes.push_back(
          {.name = alone ? std::string(group) : format("{}.{}", group, mesh.levels[i]),
           .group = wanted.group,
           .size = taken[i],
           .stride = stride,
           .level = mesh.levels[i],
           .expert = false});
      stride *= taken[i];
    }
  }
  place_experts(mesh, degrees.expert);
  return mesh;
}

}  // namespace tessera
