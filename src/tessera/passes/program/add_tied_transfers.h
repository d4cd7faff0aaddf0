#pragma once

#include "tessera/program/program.h"

namespace tessera {

// After add_transfers(): calls the transfers of a step, of parameters that several pipeline ranks
// use, on streams of their own, "send.step" and "receive.step".
//   F(0) B(0) U  ->  owner:  start.send F(0) update.receive B(0) start.sent U
//                    others: start.receive F(0) B(0) update.send U update.sent
// Weights go at the start, so that they come in while the pipeline fills: what reads them first
// waits. Gradients go after the last backward, while the pipeline drains, and are awaited by what
// reads them; their receive is called before the last work of a microbatch. So both ends have all
// other transfers of the step before or after them.
Program add_tied_transfers(Program program);

}  // namespace tessera
