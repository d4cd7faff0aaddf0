#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tessera/comm/channel.h"
#include "tessera/comm/counted_communicator.h"

namespace tessera {

// Counts what this rank sends through a channel among what it sends through a communicator.
class CountedChannel final : public Channel {
 public:
  // `counted_as` is borrowed; null at the receiver's end, where nothing counts.
  CountedChannel(std::unique_ptr<Channel> channel, CountedCommunicator* counted_as)
      : channel_(std::move(channel)), counted_as_(counted_as) {}

  void begin(std::span<std::byte> memory) override {
    if (counted_as_ != nullptr) {
      counted_as_->add_sent_bytes(static_cast<std::int64_t>(memory.size()));
    }
    channel_->begin(memory);
  }

  bool advance() override { return channel_->advance(); }

  void withdraw() override { channel_->withdraw(); }

  std::optional<Clock::time_point> due() const override { return channel_->due(); }

 private:
  std::unique_ptr<Channel> channel_;
  CountedCommunicator* counted_as_;
};

}  // namespace tessera
