#pragma once

#include <cstdint>

#include "tessera/program/program.h"

namespace tessera {

// Moves the collectives that carry training state to a stream "comm", so that they run beside the
// layers' computation: the gathers of parameters, the reductions of gradients with what adds them
// up, and the gathers at the end of the step. Every rank gets the same order. Collectives between
// the layers' products stay where they are.
//
// A block is a stretch of instructions of one layer; in the update, one up to the next gather. A
// gather is issued where the block begins that is `layers` before the one that reads it, but not
// before its operands are there: those of the backward's first blocks in the forward's last ones,
// all others in their own segment. What the update reduces goes to where backward finishes the
// gradient, in the last microbatch. Nothing of a block's collectives goes on
// when the computation begins the block `layers` + 1 after it: that is the window of memory, the
// parameters of `layers` blocks more and the gradients of `layers` + 1. The reductions of the last
// blocks of a microbatch go on while the next one's first `layers` + 1 blocks compute.
//
// Between lower() and plan_memory(): it sets streams and events, and extends the lives of what the
// stream uses until a wait for it. A program without such collectives stays as it is. Bitwise the
// same results. Errors: kInvalidArgument unless layers >= 1.
Program overlap(Program program, std::int64_t layers);

}  // namespace tessera
