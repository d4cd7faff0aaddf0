#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/nccl/nccl_world.h"

namespace tessera {

// In the place of NCCL: groups and channels of the host's world, which move the devices' memory as
// ever, and how often they were waited for.
class HostNative final : public NcclWorld {
 public:
  HostNative(World& host, const NcclOptions& options, std::atomic<int>& waits)
      : NcclWorld(host), options_(options), waits_(waits) {}

  std::unique_ptr<Communicator> group(std::span<const std::int64_t> members,
                                      std::int64_t generation,
                                      const Mover& mover) override {
    static_cast<void>(options_.stream_of(mover));  // one of the backend's
    return host().group(members, generation, mover);
  }

  // NCCL's ends wait for each other.
  std::unique_ptr<Channel> channel(const ChannelKey& key,
                                   std::int64_t generation,
                                   const Mover& mover) override {
    static_cast<void>(options_.stream_of(mover));
    const std::array members = {key.from, key.to};
    constexpr std::int64_t kMeetings = 1 << 20;
    host().group(members, kMeetings + generation)->barrier();
    return host().channel(key, generation, mover);
  }

  void synchronize(std::span<const std::int64_t> /*generations*/) override {
    if (++waits_ == fails_at) {
      fail(ErrorCode::kTimeout, "all_gather: no answer");
    }
  }

  void watch(const std::function<bool()>& is_done) override {
    while (!is_done()) {
      std::this_thread::yield();
    }
  }

  void stop() override {}

  static constexpr int kNever = -1;
  int fails_at = kNever;

 private:
  NcclOptions options_;
  std::atomic<int>& waits_;
};

}  // namespace tessera
