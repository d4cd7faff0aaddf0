#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "tessera/backend/backend.h"

namespace tessera {

// For tests: a backend that calls `before` with the number of each run(), counted from 0 in the
// order in which they begin, on any stream. What it throws is what the op throws. Transfers that
// channels move are no run().
class FaultBackend final : public Backend {
 public:
  using Before = std::function<void(std::int64_t item)>;

  FaultBackend(std::unique_ptr<Backend> backend, Before before)
      : backend_(std::move(backend)), before_(std::move(before)) {}

  std::string_view name() const override { return backend_->name(); }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return backend_->allocate(bytes); }

  void draw(const Initial& initial, const View& out) override { backend_->draw(initial, out); }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return backend_->workspace_bytes(op, operands, results);
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    before_(next_++);
    backend_->run(op, views, stream);
  }

  bool orders_streams() const override { return backend_->orders_streams(); }

  World* world() override { return backend_->world(); }

  Channel* channel(const Op& op) override { return backend_->channel(op); }

  void make_channels(std::span<const PlacedTransfer> transfers) override {
    backend_->make_channels(transfers);
  }

  void hand_over() override { backend_->hand_over(); }

  void signal(std::size_t number, StreamId stream) override { backend_->signal(number, stream); }

  void wait(std::size_t number, StreamId stream) override { backend_->wait(number, stream); }

  void synchronize() override { backend_->synchronize(); }

  void abort(std::string_view reason) override { backend_->abort(reason); }

 private:
  std::unique_ptr<Backend> backend_;
  Before before_;
  std::atomic<std::int64_t> next_ = 0;
};

}  // namespace tessera
