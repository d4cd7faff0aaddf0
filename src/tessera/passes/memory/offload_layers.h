#pragma once

#include "tessera/passes/memory/offload_states.h"
#include "tessera/program/program.h"

namespace tessera {

// Brings what lies in another space than the device's to where layers use it.
//
// Parameters (and whatever else lives always, as offload_states() or share_states() have placed
// it): each layer's are fetched, on stream "fetch", while the layer before it computes, into memory
// that lives until their last use there.
//
// Activations that forward leaves to backward, all or those that are marked, go to
// options.activations, unless that is the device's: stored, on stream "store", after their last use
// in forward, and fetched while the layer before that of their first use in backward computes.
// Their memory is free as soon as the layer after theirs has ended. Those stay that other streams
// use, of which forward makes only parts, that are small, or that would be fetched as soon as they
// are stored: of the last layer, where backward follows.
//
// Example, of a parameter #4 in a file:
//   #9 = fetch(#4) stream 1 signal 1             while layer 0 computes
//   ... = matmul(#8, #9) layer 1 wait 1
Program offload_layers(Program program, const OffloadOptions& options);

}  // namespace tessera
