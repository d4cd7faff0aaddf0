#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tessera/comm/agreement.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/nccl/nccl_bootstrap.h"
#include "tessera/comm/nccl/nccl_queue.h"

namespace tessera {

// A rank's end of a group of NCCL.
class NcclCommunicator final : public Communicator {
 public:
  // Waits for all members. Errors: kTimeout, kPeerFailure, what check_nccl() throws.
  NcclCommunicator(const NcclRank& rank,
                   std::span<const std::int64_t> members,
                   const NcclId& id,
                   std::shared_ptr<NcclQueue> queue);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::int64_t rank() const override { return rank_; }

  std::int64_t size() const override { return size_; }

  void barrier() override;
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

  // To and from another member.
  void send(std::span<const std::byte> memory, std::int64_t peer);
  void receive(std::span<std::byte> memory, std::int64_t peer);

  // Throws what NCCL has found wrong since, `doing` something; whether it is still at work.
  bool is_at_work(const std::string& doing);

  // Gives up whatever is under way in all of these groups; they work no more.
  static void drop(std::span<NcclCommunicator* const> groups);

 private:
  void end();
  void require_alive(const std::string& doing) const;
  template <class Body>
  void enqueue(const GroupCall& call, const Body& body);
  void settle(const std::string& doing);

  NcclRank shared_;
  std::int64_t rank_;
  std::int64_t size_;
  std::shared_ptr<NcclQueue> queue_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace tessera
