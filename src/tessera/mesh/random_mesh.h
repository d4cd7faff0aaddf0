#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/mesh.h"

namespace tessera {

// For tests: a cluster of levels "pair", "node", "cluster", "site" of the given sizes, as many as
// there are sizes.
inline Cluster test_cluster(const std::vector<std::int64_t>& sizes) {
  constexpr std::array<const char*, 4> kNames = {"pair", "node", "cluster", "site"};
  Cluster cluster{.name = "test", .device = {}, .levels = {}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    cluster.levels.push_back({.name = kNames.at(i), .size = sizes[i]});
  }
  return cluster;
}

struct RandomMesh {
  Cluster cluster;
  MeshDegrees degrees;
  Mesh mesh;
};

// For property tests: a mesh of up to 216 ranks on up to three levels, a pure function of the seed.
// The prime factors of the levels, inside out, are dealt to the groups in their order; the cluster
// may have more devices on its outermost level than the mesh has ranks.
inline RandomMesh random_mesh(std::uint64_t seed) {
  std::uint64_t drawn = 0;
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int64_t>(uniform(seed, drawn++) * static_cast<double>(below));
  };
  std::vector<std::int64_t> sizes;
  const std::int64_t num_levels = 1 + draw(3);
  std::array<std::int64_t, 4> degrees = {1, 1, 1, 1};
  std::int64_t group = 0;
  for (std::int64_t level = 0; level < num_levels; ++level) {
    constexpr std::array<std::array<std::int64_t, 2>, 6> kFactors = {
        {{1, 1}, {2, 1}, {3, 1}, {2, 2}, {5, 1}, {2, 3}}};
    const auto& factors = kFactors.at(static_cast<std::size_t>(draw(6)));
    sizes.push_back(factors[0] * factors[1]);
    for (const std::int64_t factor : factors) {
      group += draw(4 - group);
      degrees.at(static_cast<std::size_t>(group)) *= factor;
    }
  }
  RandomMesh random;
  random.degrees = {
      .data = degrees[2], .tensor = degrees[0], .context = degrees[1], .pipeline = degrees[3]};
  sizes.back() += draw(3);
  random.cluster = test_cluster(sizes);
  random.mesh = make_mesh(random.cluster, random.degrees);
  return random;
}

}  // namespace tessera
