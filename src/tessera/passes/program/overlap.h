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
// before its operands are there. What the update reduces goes to where backward finishes the
// gradient, in the last microbatch. Nothing of a block's collectives goes on when the computation
// begins the block `layers` + 1 after it: that is the window of memory, the parameters of `layers`
// blocks more and the gradients of `layers` + 1.
//
// No segment knows what is called before or after it. The gathers for the first `layers` blocks of
// a forward or backward are a segment of their own, called before the last `layers` blocks of the
// work before it; what a work leaves on the stream is waited for by a fence, called after the first
// `layers` + 1 blocks of the work after it, or at the end. So works are cut in pieces.
//
// Between lower() and assign_slots(): it sets streams and events, and the lives of what the stream
// uses until a wait for it. A program without such collectives stays as it is. Bitwise the
// same results. Errors: kInvalidArgument unless layers >= 1.
Program overlap(Program program, std::int64_t layers);

}  // namespace tessera
