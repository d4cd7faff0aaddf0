#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tessera/backend/backend.h"

namespace tessera {

// For tests: does what another backend does, which it borrows, but for what derived ones change.
class ForwardingBackend : public Backend {
 public:
  std::string_view name() const override { return to_.name(); }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return to_.allocate(bytes); }

  std::unique_ptr<Arena> allocate_host(std::int64_t bytes) override {
    return to_.allocate_host(bytes);
  }

  void draw(const Initial& initial, const View& out) override { to_.draw(initial, out); }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return to_.workspace_bytes(op, operands, results);
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    to_.run(op, views, stream);
  }

  bool orders_streams() const override { return to_.orders_streams(); }

  World* world() override { return to_.world(); }

  Channel* channel(const Op& op) override { return to_.channel(op); }

  void make_channels(std::span<const PlacedTransfer> transfers) override {
    to_.make_channels(transfers);
  }

  void hand_over() override { to_.hand_over(); }

  void signal(std::size_t number, StreamId stream) override { to_.signal(number, stream); }

  void wait(std::size_t number, StreamId stream) override { to_.wait(number, stream); }

  void synchronize() override { to_.synchronize(); }

  void abort(std::string_view reason) override { to_.abort(reason); }

 protected:
  explicit ForwardingBackend(Backend& to) : to_(to) {}

 private:
  Backend& to_;
};

}  // namespace tessera
