#pragma once

#include <cstdint>

#include "tessera/mesh/cluster.h"

namespace tessera {

// What a run of `num_ranks` ranks, laid out by the levels of `own`, takes on the devices and levels
// of `figures`: a cluster of the names and sizes of `own`, whose levels have the figures of those
// that lie between groups of as many ranks. Errors: kInvalidConfig naming the file of `figures`
// where it has too few devices, or several levels where the run has one: programs talk otherwise
// there.
Cluster with_figures(const Cluster& own, const Cluster& figures, std::int64_t num_ranks);

}  // namespace tessera
