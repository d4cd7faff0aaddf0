#pragma once

#include <cstddef>
#include <span>

#include "tessera/mesh/mesh.h"
#include "tessera/program/collective_calls.h"

namespace tessera {

// Throws kInternal, with ranks, places, what was found and what was expected, unless a step in
// which every rank does the collectives of its class comes to its end: members of every group come
// to equal calls in equal order, so do both ends of every channel, none is missing, and no ranks
// wait for each other in a cycle, over however many groups, channels and streams. A transfer ends
// when both ends have come to it: nothing is buffered. `class_of` gives each rank's place in
// `classes`.
//
// Runs the step symbolically. Ranks whose groups are alike, class by class, are always equally far,
// so that one of them stands for all: 512 ranks of one class cost as much as one.
void verify_ranks(const Mesh& mesh,
                  std::span<const CollectiveSequence> classes,
                  std::span<const std::size_t> class_of);

}  // namespace tessera
