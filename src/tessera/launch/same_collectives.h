#pragma once

#include "tessera/comm/communicator.h"
#include "tessera/mesh/mesh.h"
#include "tessera/program/program.h"

namespace tessera {

// Every rank of `all`, the run's ranks in order, calls it with its program before the first step.
// Ranks exchange a digest of their place along the pipeline and of their collectives, and whole
// lists only where digests differ. `one_queue`: a device launches what they do in one queue, which
// must come to its end as well (in_one_queue()). Errors, the same on every rank: as verify_ranks().
void require_same_collectives(Communicator& all,
                              const Program& program,
                              const Mesh& mesh,
                              bool one_queue);

}  // namespace tessera
