#pragma once

#include <atomic>
#include <cstdint>

#include "tessera/comm/communicator.h"

namespace tessera {

// Counts what this rank sends through another communicator. An operation of n ranks sends n - 1
// parts of its stride, whether or not the last ranks' parts are cut short; an all-reduce sends them
// twice, in parts of all_reduce_stride() elements (mesh/traffic.h).
class CountedCommunicator final : public Communicator {
 public:
  // Borrows `counted`.
  explicit CountedCommunicator(Communicator& counted) : counted_(counted) {}

  // Since the beginning. Any thread may read it.
  std::int64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }

  void add_sent_bytes(std::int64_t bytes) {
    sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }

  std::int64_t rank() const override { return counted_.rank(); }

  std::int64_t size() const override { return counted_.size(); }

  void barrier() override { counted_.barrier(); }

  void all_gather(std::span<const std::byte> part,
                  std::span<std::byte> all,
                  std::size_t stride) override;
  void reduce_scatter(Fold fold,
                      const ConstElements& all,
                      const Elements& part,
                      std::int64_t stride) override;
  void all_reduce(Fold fold, const ConstElements& in, const Elements& out) override;
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override;
  void ring_shift(std::span<const std::byte> send, std::span<std::byte> receive) override;

 private:
  void count(std::int64_t part_bytes) { add_sent_bytes(part_bytes * (size() - 1)); }

  Communicator& counted_;
  std::atomic<std::int64_t> sent_bytes_ = 0;
};

}  // namespace tessera
