#include "tessera/ops/point_to_point/point_to_point.h"

#include <string>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

template <class Attrs>
ChannelPlaces places_of(const Attrs& attrs) {
  return {.from = attrs.from, .to = attrs.to, .number = attrs.number};
}

template <class Attrs>
void require_places(const Attrs& attrs) {
  const std::int64_t ranks = num_ranks(attrs.axes);
  const auto is_place = [&](std::int64_t place) { return place >= 0 && place < ranks; };
  TESSERA_REQUIRE(
      is_place(attrs.from) && is_place(attrs.to) && attrs.number >= 0 && attrs.index >= 0,
      ErrorCode::kInvalidArgument,
      "tensor {} of channel {} from {} to {}: expected numbers from 0 and places below {}",
      attrs.index,
      attrs.number,
      attrs.from,
      attrs.to,
      ranks);
  TESSERA_REQUIRE(ranks == 1 || attrs.from != attrs.to,
                  ErrorCode::kInvalidArgument,
                  "a channel from {} to itself: expected two places",
                  attrs.from);
}

// A use of the channel of `attrs`; nothing along no axis.
template <class Attrs>
Collectives channel_use(const Attrs& attrs,
                        CollectiveKind kind,
                        const TensorType& type,
                        const Traffic& sent) {
  if (num_ranks(attrs.axes) == 1) {
    return {};
  }
  return {{.axes = attrs.axes,
           .kind = kind,
           .dtype = type.dtype,
           .bytes = type.num_bytes(),
           .sent = sent,
           .channel = places_of(attrs),
           .index = attrs.index}};
}

template <class Attrs>
void visit_channel(Attrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visitor.field("from", attrs.from);
  visitor.field("to", attrs.to);
  visitor.field("number", attrs.number);
  visitor.field("index", attrs.index);
}

}  // namespace

OpInfo info(const SendAttrs&) {
  return {.name = "send", .num_operands = 1, .num_results = 0};
}

TensorTypes infer(const SendAttrs& attrs, Types in) {
  require_places(attrs);
  require_dims(in, 0, -1);
  return {};
}

// Each rank sends its own shard, however the tensor is cut.
FactorRule factors(const SendAttrs&, Types in) {
  return parse_factor_rule(format("({}) ->", factor_names(in[0].num_dims())));
}

Works work(const SendAttrs&, Types in) {
  Work wire{.kind = WorkKind::kWire, .dtype = in[0].dtype};
  count_bytes(wire, in, {});
  return {wire};
}

Collectives collectives(const SendAttrs& attrs, Types in) {
  return channel_use(
      attrs,
      CollectiveKind::kSend,
      in[0],
      {{std::string(crossed_axis(attrs.axes, places_of(attrs))), {0, in[0].num_bytes(), 0}}});
}

void backward(const SendAttrs&, GradBuilder& grad) {
  grad.none("the gradient of what was sent is on the rank that received it");
}

void visit(SendAttrs& attrs, AttrVisitor& visitor) {
  visit_channel(attrs, visitor);
}

OpInfo info(const ReceiveAttrs&) {
  return {.name = "receive", .num_operands = 0};
}

TensorTypes infer(const ReceiveAttrs& attrs, Types) {
  require_places(attrs);
  return {attrs.type};
}

// Its type says how many of each dim there are.
FactorRule factors(const ReceiveAttrs& attrs, Types) {
  const std::string dims = factor_names(attrs.type.num_dims());
  return parse_factor_rule(
      format("-> ({}){}", dims, dims.empty() ? "" : " | whole " + factor_list(dims)));
}

Works work(const ReceiveAttrs& attrs, Types in) {
  Work wire{.kind = WorkKind::kWire, .dtype = attrs.type.dtype};
  count_bytes(wire, in, infer(attrs, in));
  return {wire};
}

Collectives collectives(const ReceiveAttrs& attrs, Types) {
  return channel_use(attrs, CollectiveKind::kReceive, attrs.type, {});
}

void backward(const ReceiveAttrs&, GradBuilder& grad) {
  grad.none("a receive has no operands");
}

void visit(ReceiveAttrs& attrs, AttrVisitor& visitor) {
  visit_channel(attrs, visitor);
  visitor.text_field("type", attrs.type);
}

}  // namespace tessera
