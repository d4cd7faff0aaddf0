#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <cuda_runtime_api.h>

#include "tessera/base/error.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/nccl/nccl_world.h"

// For tests: NCCL on memory of the host.

namespace tessera {

inline void check(cudaError_t result) {
  TESSERA_CHECK(result == cudaSuccess, "{}", cudaGetErrorString(result));
}

// Memory of the device that holds what lies at `host`.
class DeviceCopy {
 public:
  DeviceCopy(const std::byte* host, std::size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)));
    if (host != nullptr && bytes > 0) {
      check(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice));
      check(cudaStreamSynchronize(nullptr));  // not the whole device: see StagedCommunicator
    }
  }

  ~DeviceCopy() { cudaFree(data_); }

  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

  void to_host(std::byte* host) const {
    if (bytes_ > 0) {
      check(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost));
    }
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// A group or a channel of devices, and what its operations read and write there.
struct Staged {
  std::unique_ptr<Communicator> group = nullptr;
  std::unique_ptr<Channel> channel = nullptr;
  std::deque<DeviceCopy> memory = {};
};

// Operations on memory of the host, as the cases have it: through the device's, and waited for.
class StagedCommunicator final : public Communicator {
 public:
  // Borrows both.
  StagedCommunicator(NcclWorld& world, Staged& group, std::int64_t generation)
      : world_(world), group_(group), device_(group.group.get()), generation_(generation) {}

  std::int64_t rank() const override { return device_->rank(); }

  std::int64_t size() const override { return device_->size(); }

  void barrier() override {
    device_->barrier();
    world_.synchronize({&generation_, 1});
  }

  void all_gather(std::span<const std::byte> part,
                  std::span<std::byte> all,
                  std::size_t stride) override {
    const DeviceCopy& from = stage(part.data(), part.size());
    const DeviceCopy& to = stage(nullptr, all.size());
    device_->all_gather({from.data(), part.size()}, {to.data(), all.size()}, stride);
    finish(to, all.data());
  }

  void reduce_scatter(Fold fold,
                      const ConstElements& all,
                      const Elements& part,
                      std::int64_t stride) override {
    const DeviceCopy& from = stage(all.data, bytes(all));
    const DeviceCopy& to = stage(nullptr, bytes(part));
    device_->reduce_scatter(fold, moved(all, from), moved(part, to), stride);
    finish(to, part.data);
  }

  void all_reduce(Fold fold, const ConstElements& in, const Elements& out) override {
    const DeviceCopy& from = stage(in.data, bytes(in));
    const DeviceCopy& to = stage(nullptr, bytes(out));
    device_->all_reduce(fold, moved(in, from), moved(out, to));
    finish(to, out.data);
  }

  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    const DeviceCopy& from = stage(send.data(), send.size());
    const DeviceCopy& to = stage(nullptr, receive.size());
    device_->all_to_all({from.data(), send.size()}, {to.data(), receive.size()});
    finish(to, receive.data());
  }

  void ring_shift(std::span<const std::byte> send, std::span<std::byte> receive) override {
    const DeviceCopy& from = stage(send.data(), send.size());
    const DeviceCopy& to = stage(nullptr, receive.size());
    device_->ring_shift({from.data(), send.size()}, {to.data(), receive.size()});
    finish(to, receive.data());
  }

 private:
  static std::size_t bytes(const ConstElements& elements) {
    return static_cast<std::size_t>(elements.bytes());
  }

  static Elements moved(const ConstElements& elements, const DeviceCopy& place) {
    return {.dtype = elements.dtype, .data = place.data(), .count = elements.count};
  }

  const DeviceCopy& stage(const std::byte* host, std::size_t bytes) {
    return group_.memory.emplace_back(host, bytes);
  }

  void finish(const DeviceCopy& from, std::byte* to) {
    world_.synchronize({&generation_, 1});
    from.to_host(to);
  }

  NcclWorld& world_;
  Staged& group_;
  Communicator* device_;
  std::int64_t generation_;
};

// The same of transfers.
class StagedChannel final : public Channel {
 public:
  // Borrows both. `sends`: at the sender's end.
  StagedChannel(NcclWorld& world, Staged& staged, std::int64_t generation, bool sends)
      : world_(world), staged_(staged), generation_(generation), sends_(sends) {}

  void begin(std::span<std::byte> memory) override {
    memory_ = memory;
    const DeviceCopy& place =
        staged_.memory.emplace_back(sends_ ? memory.data() : nullptr, memory.size());
    staged_.channel->begin({place.data(), memory.size()});
    is_under_way_ = true;
  }

  bool advance() override {
    if (std::exchange(is_under_way_, false)) {
      world_.synchronize({&generation_, 1});
      if (!sends_) {
        staged_.memory.back().to_host(memory_.data());
      }
    }
    return true;
  }

  void withdraw() override { staged_.channel->withdraw(); }

 private:
  NcclWorld& world_;
  Staged& staged_;
  std::int64_t generation_;
  bool sends_;
  std::span<std::byte> memory_;
  bool is_under_way_ = false;
};

class StagedWorld final : public World {
 public:
  explicit StagedWorld(std::unique_ptr<NcclWorld> device) : device_(std::move(device)) {}

  StagedWorld(const StagedWorld&) = delete;
  StagedWorld& operator=(const StagedWorld&) = delete;

  // In one order on all ranks, which wait for each other: that of each generation's thread.
  ~StagedWorld() override {
    for (auto& [generation, all] : staged_) {
      for (Staged& each : all) {
        each.group.reset();
        each.channel.reset();
      }
    }
  }

  std::int64_t rank() const override { return device_->rank(); }

  std::int64_t size() const override { return device_->size(); }

  // NCCL moves the bytes itself.
  std::unique_ptr<Communicator> group(std::span<const std::int64_t> members,
                                      std::int64_t generation,
                                      const Mover& /*mover*/) override {
    auto group = device_->group(members, generation);
    const std::scoped_lock lock(mutex_);
    Staged& staged = staged_[generation].emplace_back(Staged{.group = std::move(group)});
    return std::make_unique<StagedCommunicator>(*device_, staged, generation);
  }

  std::unique_ptr<Channel> channel(const ChannelKey& key,
                                   std::int64_t generation,
                                   const Mover& /*mover*/) override {
    auto channel = device_->channel(key, generation);
    const std::scoped_lock lock(mutex_);
    Staged& staged = staged_[generation].emplace_back(Staged{.channel = std::move(channel)});
    return std::make_unique<StagedChannel>(*device_, staged, generation, key.from == rank());
  }

  Bell& bell() override { return device_->bell(); }

  std::chrono::microseconds longest_sleep() const override { return device_->longest_sleep(); }

  Progress& progress() override { return device_->progress(); }

  const RunProgress& run_progress() const override { return device_->run_progress(); }

  void exchange_progress() override { device_->exchange_progress(); }

  void abort(std::string_view reason) override { device_->abort(reason); }

  std::optional<std::string> abort_reason() override { return device_->abort_reason(); }

  void leave() override { device_->leave(); }

 private:
  std::unique_ptr<NcclWorld> device_;
  std::mutex mutex_;  // guards what follows
  // By generation. All of it lives until everything is done: to free memory is to wait for the
  // device, where operations of other threads' groups may wait for ranks that do the same.
  std::map<std::int64_t, std::deque<Staged>> staged_;
};

}  // namespace tessera
