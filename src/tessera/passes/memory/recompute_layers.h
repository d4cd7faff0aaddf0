#pragma once

#include <string>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/passes/memory/recompute_rule.h"

namespace tessera {

// Of what a layer computes in forward, what its rule says is kept for backward, which repeats the
// rest first, and what of it leaves for another space until then. Bitwise the same results. Errors:
// kInvalidConfig where a rule names an op that its layers do not have, with those that they have.
//   y = f(x) @forward; dx = f_backward(dy, y) @backward
//   ->  y = f(x) @forward; z = f(x) @backward; dx = f_backward(dy, z) @backward
Graph recompute_layers(const Graph& graph, const RecomputeRules& rules);

// Whether a node draws random numbers.
bool is_random(const Node& node);

// Whether a node is of the backward of one microbatch.
bool is_of_backward(const Node& node);

// Whether nothing of a node of forward is worth keeping: what ring shifts bring, ids of keys cut
// out of an input, and a ring's steps but the last, for which it takes all before it.
bool is_passing(const Graph& graph, const Node& node);

// By node, its name in rules with its number, "rms_norm.1"; empty where it is of no layer's forward
// or passing. The last step of a ring is called attention.
std::vector<std::string> recompute_names(const Graph& graph);

}  // namespace tessera
