#pragma once

#include "tessera/program/program.h"

namespace tessera {

// Which collectives of activations.
enum class TensorTraffic {
  kRings,  // ring shifts alone
  kAll
};

// Has collectives of activations run on a stream of their own, "tensor", beside work that needs
// none of it: what comes between one and its first reader; where that is nothing, what comes before
// it and makes nothing for it, or else a product from before it that may come after it, as that of
// a weight's gradient may.
//   dw = product(g, x); dx = product(g, w); y = reduce_scatter(dx); norm(y)
//     ->  dx = product(g, w); y = reduce_scatter(dx) stream 2; dw = product(g, x); norm(y) waits
// The reader waits, and what such a collective uses lives until then. Ring shifts along several
// axes have a stream for each: those of a fast level need not wait for those of a slow one. Those
// that no such work hides stay with the computation. After overlap() and gather_beside(), which cut
// the work; before add_transfers() and assign_slots(). Bitwise the same results.
Program tensor_beside(Program program, TensorTraffic traffic = TensorTraffic::kAll);

}  // namespace tessera
