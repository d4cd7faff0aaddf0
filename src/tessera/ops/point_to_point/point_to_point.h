#pragma once

#include <cstdint>

#include "tessera/ir/tensor_type.h"
#include "tessera/mesh/axes.h"
#include "tessera/ops/op.h"

namespace tessera {

class Channel;  // comm/channel.h

// Tensors that go from one rank to another over a channel. The two ranks have the places `from` and
// `to` along the mesh axes `axes`, innermost first, whose place is the fastest digit, and share all
// other coordinates; `number` tells the channels of the same two places apart. What one end sends
// the other one receives in the same order, in memory of the same size, as it lies there: `index`
// says which it is of what the channel carries in a microbatch, in slices or whole, or in a step.
//
// Passes make them once a graph is cut into stages. A stream of nothing but these ops needs no
// thread: its transfers are moved by one for all (runtime/stream_order.h). Tensor traffic of the
// sender, on the outermost axis on which the places differ.
//
// Along no axis nothing moves: what is sent is lost, and what is received are zeros.

// Operands: x (..) -> none
struct SendAttrs {
  AxisSizes axes = {};
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t number = 0;
  std::int64_t index = 0;

  friend bool operator==(const SendAttrs&, const SendAttrs&) = default;
};

// Operands: none -> y of type `type`, that of the x that was sent
struct ReceiveAttrs {
  AxisSizes axes = {};
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t number = 0;
  std::int64_t index = 0;
  // No tensor's by default, so that the text of an op always names it.
  TensorType type = {.dims = {{.name = "none", .bound = 0}}};

  friend bool operator==(const ReceiveAttrs&, const ReceiveAttrs&) = default;
};

// The channel of a send or receive along an axis of several ranks; null for any other op.
// Errors: those of CollectiveContext::channel().
Channel* channel_of(const Op& op, CollectiveContext& context);

OpInfo info(const SendAttrs& attrs);
TensorTypes infer(const SendAttrs& attrs, Types in);
FactorRule factors(const SendAttrs& attrs, Types in);
Works work(const SendAttrs& attrs, Types in);
Collectives collectives(const SendAttrs& attrs, Types in);
void backward(const SendAttrs& attrs, GradBuilder& grad);
void visit(SendAttrs& attrs, AttrVisitor& visitor);
void run(const SendAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const ReceiveAttrs& attrs);
TensorTypes infer(const ReceiveAttrs& attrs, Types in);
FactorRule factors(const ReceiveAttrs& attrs, Types in);
Works work(const ReceiveAttrs& attrs, Types in);
Collectives collectives(const ReceiveAttrs& attrs, Types in);
void backward(const ReceiveAttrs& attrs, GradBuilder& grad);
void visit(ReceiveAttrs& attrs, AttrVisitor& visitor);
void run(const ReceiveAttrs& attrs, CollectiveContext& context, const Views& views);

}  // namespace tessera
