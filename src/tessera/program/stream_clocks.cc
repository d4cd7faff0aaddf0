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

StreamClocks::StreamClocks(std::size_t num_streams)
    : num_streams_(num_streams), clocks_(num_streams * num_streams) {}

std::size_t StreamClocks::add_events(std::size_t count) {
  const std::size_t first = events_.size() / num_streams_;
  events_.resize(events_.size() + count * num_streams_);
  return first;
}

void StreamClocks::issue(StreamId stream) {
  stream_ = stream;
  const std::span<std::int64_t> clock = clock_in(clocks_, stream.at());
  if (stream.index != 0) {
    raise(clock, clock_in(clocks_, 0));
  }
  ++clock[stream.at()];
}

bool StreamClocks::wait(std::size_t event) {
  const std::span<const std::int64_t> signalled = clock_in(events_, event);
  raise(clock_in(clocks_, stream_.at()), signalled);
  return std::ranges::any_of(signalled, [](std::int64_t count) { return count > 0; });
}

void StreamClocks::signal(std::size_t event) {
  std::ranges::copy(clock_in(clocks_, stream_.at()), clock_in(events_, event).begin());
}

std::optional<Use> StreamClocks::use() const {
  return stream_.index == 0 ? std::nullopt : std::optional(Use{stream_, count(stream_, stream_)});
}

std::optional<StreamId> StreamClocks::unordered(const Uses& uses) const {
  const auto found = std::ranges::find_if(
      uses, [&](const Use& use) { return use.count > count(stream_, use.stream); });
  return found == uses.end() ? std::nullopt : std::optional(found->stream);
}

void StreamClocks::forget_ordered(Uses& uses) const {
  uses.erase_if([&](const Use& use) { return use.count <= count({0}, use.stream); });
}

}  // namespace tessera
