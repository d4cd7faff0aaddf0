#include "tessera/program/stream_clocks.h"

#include <algorithm>

namespace tessera {
namespace {

void raise(std::span<std::int64_t> clock, std::span<const std::int64_t> other) {
  for (std::size_t stream = 0; stream < clock.size(); ++stream) {
    clock[stream] = std::max(clock[stream], other[stream]);
  }
}

}  // namespace

void Uses::add(const Use& use) {
  const auto place = std::ranges::lower_bound(uses_, use.stream, {}, &Use::stream);
  if (place == uses_.end() || place->stream != use.stream) {
    uses_.insert(place, use);
  } else {
    place->count = std::max(place->count, use.count);
  }
}

void Uses::add(const Uses& uses) {
  for (const Use& use : uses) {
    add(use);
  }
}

StreamClocks::StreamClocks(const IssueOrder& order, std::size_t num_streams)
    : order_(order),
      num_streams_(num_streams),
      clocks_(num_streams * num_streams),
      marks_(order.num_marks * num_streams) {}

void StreamClocks::begin(const IssueStep& step) {
  stream_ = step.stream;
  now_ = stream_ * num_streams_;
  const std::span<std::int64_t> clock = clock_in(clocks_, stream_);
  if (stream_ != 0) {
    raise(clock, clock_in(clocks_, 0));
  }
  for (const StepIndex awaited : order_.waits_of(step)) {
    raise(clock, clock_in(marks_, order_.steps[awaited].mark));
  }
}

std::optional<StreamId> StreamClocks::unordered(const Uses& uses) const {
  const auto found = std::ranges::find_if(
      uses, [&](const Use& use) { return use.count > counts()[use.stream.at()]; });
  return found == uses.end() ? std::nullopt : std::optional(found->stream);
}

void StreamClocks::forget_ordered(Uses& uses) const {
  uses.erase_if([&](const Use& use) { return use.count <= clocks_[use.stream.at()]; });
}

}  // namespace tessera
