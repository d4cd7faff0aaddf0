#pragma once

#include "tessera/ir/graph.h"
#include "tessera/mesh/axes.h"

namespace tessera {

// Writes the steps of attention whose keys and values go round a ring of context ranks, in the
// graph of one rank. Along one axis of C ranks:
//   o, lse = attention{ring}(q, k, v, ids)
//     ->  k1 = ring_shift(k); v1 = ring_shift(v); o1, lse1 = attention_part{step=0}(q, k, v, ids0)
//         ..
//         o, lse = attention_part{step=C-1}(q, k', v', ids', o', lse')
// In step i a rank has the part of the one i places before it; the ids of its keys are cut from
// those of all, `key_positions` and `key_documents`, which every rank has. The next part arrives
// during a step: two parts exist at a time. In backward they go round again, and the sums of dk and
// dv follow, in f32, with what each rank adds; after C shifts they are home.
//
// Along several axes, innermost first, the ring of the first turns once in each step of that of the
// next, as a double ring does: (C1 - 1) / C of what a rank sends crosses the outer level of C1.
// Every step is there whatever documents the keys have: what sees nothing skips its kernel alone.
// Results are the same bits for one number of ranks along each axis.
Graph ring_attention(const Graph& graph, const AxisSizes& axes);

}  // namespace tessera
