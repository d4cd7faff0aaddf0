#pragma once

#include <cstdint>
#include <span>

#include "tessera/passes/program/order_calls.h"
#include "tessera/program/program.h"

namespace tessera {

// After overlap(): calls the receives and sends of microbatches that lower() has left, on streams
// of their own, one for each direction of each action of each stage, which has `slices` chunks:
// stages talk to different ranks, and one that is late would hold up what another has sent; what
// goes between two stages goes in order.
//   F(0) F(1)  ->  receive(0) receive(1) F(0) send(0) F(1) send(1)
// A receive is called where `order` has it; the first reader in a segment waits for it. A send is
// called right after its work. What is sent is waited for ("sent") when the work comes to its
// second step after it, before a call that ends the life of what it reads, and before the update.
// Received and sent tensors, and the events, have pools of their own: a slot is taken from the
// receive's call on. Errors: kInternal where `order` lists other works than the program calls, or
// not every receive.
Program add_transfers(Program program, std::span<const WorkStep> order, std::int64_t slices);

}  // namespace tessera
