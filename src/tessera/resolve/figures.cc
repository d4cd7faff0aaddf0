#include "tessera/resolve/figures.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

// The figures of groups of `inner` ranks that make up one of `outer`.
const Level& level_between(const Cluster& figures,
                           const Level& own,
                           std::int64_t inner,
                           std::int64_t outer) {
  std::vector<const Level*> found;
  std::string names;
  std::int64_t below = 1;
  bool is_cut = false;  // a level's links are shared by another number of ranks
  for (const Level& level : figures.levels) {
    const std::int64_t all = below * level.size;
    if (below < outer && all > inner) {
      found.push_back(&level);
      names += format("{}{}", names.empty() ? "" : ", ", level.name);
      is_cut = is_cut || (level.shared && below != inner);
    }
    below = all;
  }
  TESSERA_REQUIRE(below >= outer,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected the {} of the run or more",
                  figures.source,
                  format_plural(below, "device"),
                  format_plural(outer, "rank"));
  TESSERA_REQUIRE(found.size() == 1 && !is_cut,
                  ErrorCode::kInvalidConfig,
                  "{}: between groups of {} and of {} ranks found {} ({}), where the run has one "
                  "level, \"{}\", for which its program was made: expected a cluster file with one "
                  "level of these groups there",
                  figures.source,
                  inner,
                  outer,
                  found.size() > 1 ? format_plural(std::ssize(found), "level")
                                   : "links that other groups share",
                  names,
                  own.name);
  return *found.front();
}

}  // namespace

Cluster with_figures(const Cluster& own, const Cluster& figures, std::int64_t num_ranks) {
  Cluster cluster = figures;
  cluster.levels.clear();
  std::int64_t below = 1;
  for (const Level& level : own.levels) {
    const std::int64_t all = std::min(below * level.size, num_ranks);
    // What a run does not reach, or one group has to itself, needs no figures.
    Level mapped = all > below ? level_between(figures, level, below, all) : level;
    mapped.name = level.name;
    mapped.size = level.size;
    cluster.levels.push_back(mapped);
    below *= level.size;
  }
  return cluster;
}

}  // namespace tessera
