#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/ir/graph.h"

namespace tessera {

// Whether a parameter of several uses gets one output, the sum of what its uses send back, or one
// per use. A use is an operand of a forward node that the loss depends on: the table of a lookup,
// the weight of a product, the head.
enum class GradientUses : std::uint8_t { kSummed, kApart };

// What differentiate() calls the output that is the gradient of `parameter`.
std::string gradient_name(std::string_view parameter);

// The same of one of several uses that are apart.
std::string gradient_name(std::string_view parameter, std::int32_t use);

// Appends the backward graph of the output of kind loss: for every parameter that is not frozen, an
// output of kind gradient in f32, or several (`uses`), numbered in the order of use. Nodes are
// visited in reverse and each op's own backward() rule is applied; gradients of a value that is
// used several times are added in the order of use. Backward nodes belong to their forward node's
// layer.
// The loss must come from an op that takes the backward seed itself (cross_entropy).
// Errors: kInvalidArgument without such an output or where a parameter does not reach the loss;
// kUnsupported where an op on the way has no gradient.
Graph differentiate(Graph graph, GradientUses uses = GradientUses::kSummed);

}  // namespace tessera
