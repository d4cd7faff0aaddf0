#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "tessera/backend/test_forwarding_backend.h"

namespace tessera {

// For tests: a backend that calls `before` with the number of each run(), counted from 0 in the
// order in which they begin, on any stream. What it throws is what the op throws. Transfers that
// channels move are no run().
class FaultBackend final : public ForwardingBackend {
 public:
  using Before = std::function<void(std::int64_t item)>;

  FaultBackend(std::unique_ptr<Backend> backend, Before before)
      : ForwardingBackend(*backend), backend_(std::move(backend)), before_(std::move(before)) {}

  void run(const Op& op, const Views& views, StreamId stream) override {
    before_(next_++);
    ForwardingBackend::run(op, views, stream);
  }

 private:
  std::unique_ptr<Backend> backend_;
  Before before_;
  std::atomic<std::int64_t> next_ = 0;
};

}  // namespace tessera
