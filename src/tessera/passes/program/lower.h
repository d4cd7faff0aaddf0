#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tessera/ir/graph.h"
#include "tessera/ir/view.h"
#include "tessera/program/program.h"

namespace tessera {

// Workspace bytes that a backend needs to run `op` on tensors that lie like these views (without
// data).
using WorkspaceQuery = std::function<std::int64_t(
    const Op& op, std::span<const View> operands, std::span<const View> results)>;

struct LowerOptions {
  std::int64_t num_microbatches = 1;
  bool splits_backward = false;  // weight gradients are an action of their own
  // Whether the microbatches leave their sums for one update at the end; else each has outputs of
  // its own, and an update that makes them, all at the end.
  bool is_summed = true;
  WorkspaceQuery workspace_bytes = {};
};

// From the graph of a step to the program of a rank: every value gets a place in a buffer (parts of
// a concat lie in one buffer, an op may write over an operand that nobody needs any more, state is
// updated in place), nodes become instructions of a segment for each action and chunk, and the call
// list runs these once a microbatch (forwards of the chunks in rising order, backwards in falling
// order, then weight gradients) and update once. With several microbatches, segments that
// accumulate have a variant for the first one, which writes instead of adding; of the slices of
// one, the first that comes to an accumulator writes. What one action leaves for a later one is in
// a pool of these two ("stash": for the backward of its chunk). Receives and sends are segments of
// their own, which nothing calls before add_transfers() and add_tied_transfers(). Slots are left to
// assign_slots(), offsets to plan_memory(). Errors: kInternal where the graph asks for an
// impossible placement.
Program lower(const Graph& graph, const LowerOptions& options);

// What the workspace of the instruction at `place` is called.
std::string workspace_name(Place place);

}  // namespace tessera
