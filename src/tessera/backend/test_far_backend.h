#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/device_backend.h"
#include "tessera/base/error.h"

namespace tessera {

// For tests: the CPU as a device with memory of its own that works behind the host's back. Nothing
// runs before synchronize(), so that what reaches the host too early or the device too late is
// seen. Of one rank.
class FarBackend : public DeviceBackend {
 public:
  explicit FarBackend(int threads) : near_(make_cpu_backend(threads)) {}

  std::string_view name() const override { return "far"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    return std::make_unique<FarArena>(*this, near_->allocate(bytes), bytes);
  }

  std::unique_ptr<Arena> allocate_host(std::int64_t bytes) override {
    return near_->allocate_host(bytes);
  }

  void draw(const Initial& initial, const View& out) override { near_->draw(initial, out); }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return near_->workspace_bytes(op, operands, results);
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    begun_.push_back({.op = &op,
                      .in = {views.in.begin(), views.in.end()},
                      .out = {views.out.begin(), views.out.end()},
                      .workspace = views.workspace,
                      .stream = stream});
  }

  // All that it is given runs in this order.
  bool orders_streams() const override { return true; }

  void synchronize() override {
    for (const Begun& begun : std::exchange(begun_, {})) {
      near_->run(*begun.op,
                 {.in = begun.in, .out = begun.out, .workspace = begun.workspace},
                 begun.stream);
    }
  }

  void abort(std::string_view reason) override {
    if (abort_) {
      abort_(reason);
    }
  }

  const Mover& mover(StreamId /*stream*/) const override { return host_mover(); }

  void set_communicators(StreamId /*stream*/, CommunicatorOf /*communicator_of*/) override {}

  void set_channels(World& /*world*/, ChannelsOf /*channels_of*/) override {}

  CUstream_st* native_stream(StreamId /*stream*/) const override { return nullptr; }

  CUstream_st* native_stream(const Mover& /*mover*/) const override { return nullptr; }

  int ordinal() const override { return 0; }

  void set_native(NativeCollectives /*native*/) override {
    TESSERA_CHECK(false, "a rank alone talks to nobody");
  }

  void drop_recordings() override {}

  void set_abort(std::function<void(std::string_view reason)> abort) override {
    abort_ = std::move(abort);
  }

  std::int64_t bytes_to_device = 0;  // copied so far
  std::int64_t bytes_to_host = 0;

 protected:
  bool has_begun() const { return !begun_.empty(); }

 private:
  class FarArena final : public Arena {
   public:
    FarArena(FarBackend& backend, std::unique_ptr<Arena> device, std::int64_t bytes)
        : backend_(backend), device_(std::move(device)), host_(static_cast<std::size_t>(bytes)) {}

    std::byte* data() override { return device_->data(); }

    std::byte* host() override { return host_.data(); }

    void to_device(std::int64_t offset, std::int64_t bytes) override {
      require_idle();
      backend_.bytes_to_device += bytes;
      std::memcpy(data() + offset, host() + offset, static_cast<std::size_t>(bytes));
    }

    void to_host(std::int64_t offset, std::int64_t bytes) override {
      require_idle();
      backend_.bytes_to_host += bytes;
      std::memcpy(host() + offset, data() + offset, static_cast<std::size_t>(bytes));
    }

   private:
    void require_idle() const {
      TESSERA_CHECK(backend_.begun_.empty(), "copies while the device is at work");
    }

    FarBackend& backend_;
    std::unique_ptr<Arena> device_;
    std::vector<std::byte> host_;
  };

  struct Begun {
    const Op* op;
    std::vector<View> in;
    std::vector<View> out;
    std::span<std::byte> workspace;
    StreamId stream;
  };

  std::unique_ptr<Backend> near_;
  std::function<void(std::string_view reason)> abort_;
  std::vector<Begun> begun_;
};

}  // namespace tessera
