#pragma once

#include <string>
#include <string_view>

#include "tessera/ir/graph.h"

namespace tessera {

// What differentiate() calls the output that is the gradient of `parameter`.
std::string gradient_name(std::string_view parameter);

// Appends the backward graph of the output of kind loss: for every parameter that is not frozen, an
// output of kind gradient in f32. Nodes are visited in reverse and each op's own backward()
// rule is applied; gradients of a value that is used several times are added in the order of use.
// Backward nodes belong to their forward node's layer.
// The loss must come from an op that takes the backward seed itself (cross_entropy).
// Errors: kInvalidArgument without such an output or where a parameter does not reach the loss;
// kUnsupported where an op on the way has no gradient.
Graph differentiate(Graph graph);

}  // namespace tessera
