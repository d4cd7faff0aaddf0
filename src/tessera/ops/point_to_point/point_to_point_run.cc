#include <cstddef>
#include <span>
#include <thread>

#include "tessera/comm/channel.h"
#include "tessera/comm/collective_context.h"
#include "tessera/comm/mover.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/point_to_point/point_to_point.h"

namespace tessera {
namespace {

template <class Attrs>
Channel* channel_along(const Attrs& attrs, CollectiveContext& context) {
  return num_ranks(attrs.axes) == 1
             ? nullptr
             : &context.channel(attrs.axes,
                                {.from = attrs.from, .to = attrs.to, .number = attrs.number},
                                TrafficClass::kTensor);
}

// Where a stream has other ops as well, they wait until the other end has come.
void move(Channel& channel, std::span<std::byte> memory) {
  channel.begin(memory);
  while (!channel.advance()) {
    std::this_thread::yield();
  }
}

}  // namespace

Channel* channel_of(const Op& op, CollectiveContext& context) {
  if (const auto* send = op.get_if<SendAttrs>()) {
    return channel_along(*send, context);
  }
  const auto* receive = op.get_if<ReceiveAttrs>();
  return receive == nullptr ? nullptr : channel_along(*receive, context);
}

void run(const SendAttrs& attrs, CollectiveContext& context, const Views& views) {
  if (Channel* const channel = channel_along(attrs, context)) {
    move(*channel, memory_of(InOrder(views.in).next()));
  }
}

void run(const ReceiveAttrs& attrs, CollectiveContext& context, const Views& views) {
  const std::span<std::byte> memory = memory_of(InOrder(views.out).next());
  if (Channel* const channel = channel_along(attrs, context)) {
    move(*channel, memory);
  } else {
    context.mover().zero(memory);
  }
}

}  // namespace tessera
