#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/device/check.h"
#include "tessera/backend/cuda/device/streams.h"
#include "tessera/comm/channel.h"

namespace tessera::cuda {

// A channel that moves a device's memory by the host. Transfers begin when the device is done with
// what the rank's thread gave it before it handed the transfer over, which no thread waits for.
class HeldChannel final : public Channel {
 public:
  // Borrows both. `ordinal`: the device.
  HeldChannel(Channel& channel, const HandOvers& handed_over, int ordinal)
      : channel_(channel), handed_over_(handed_over), ordinal_(ordinal) {}

  void begin(std::span<std::byte> memory) override {
    held_ = {.memory = memory, .until = &handed_over_.last()};
  }

  bool advance() override {
    if (held_.until != nullptr) {
      check(cudaSetDevice(ordinal_), "cudaSetDevice()");
      if (!held_.until->is_done()) {
        return false;
      }
      channel_.begin(std::exchange(held_, {}).memory);
    }
    return channel_.advance();
  }

  void withdraw() override {
    held_ = {};
    channel_.withdraw();
  }

  // Nothing rings when a device is done.
  std::optional<Clock::time_point> due() const override {
    constexpr std::chrono::microseconds kLook(20);
    return held_.until != nullptr ? std::optional(Clock::now() + kLook) : channel_.due();
  }

 private:
  // A transfer that has yet to begin.
  struct Held {
    std::span<std::byte> memory;
    const Event* until = nullptr;  // null: there is none
  };

  Channel& channel_;
  const HandOvers& handed_over_;
  int ordinal_;
  Held held_;
};

}  // namespace tessera::cuda
