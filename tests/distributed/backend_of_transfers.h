#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tessera/backend/backend.h"

namespace tessera {

// Moves tensors from rank to rank, and does nothing else: what is left is the runtime's.
class BackendOfTransfers final : public Backend {
 public:
  explicit BackendOfTransfers(Backend& backend) : backend_(backend) {}

  std::string_view name() const override { return "transfers"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return backend_.allocate(bytes); }

  void draw(const Initial& initial, const View& out) override { backend_.draw(initial, out); }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return backend_.workspace_bytes(op, operands, results);
  }

  void synchronize() override { backend_.synchronize(); }

  World* world() override { return backend_.world(); }

  Channel* channel(const Op& op) override { return backend_.channel(op); }

  void run(const Op& /*op*/, const Views& /*views*/, StreamId /*stream*/) override {}

  void abort(std::string_view reason) override { backend_.abort(reason); }

 private:
  Backend& backend_;
};

}  // namespace tessera
