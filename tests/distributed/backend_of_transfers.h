#pragma once

#include "tessera/backend/test_forwarding_backend.h"

namespace tessera {

// Moves tensors from rank to rank, and does nothing else: what is left is the runtime's.
class BackendOfTransfers final : public ForwardingBackend {
 public:
  explicit BackendOfTransfers(Backend& backend) : ForwardingBackend(backend) {}

  void run(const Op& /*op*/, const Views& /*views*/, StreamId /*stream*/) override {}
};

}  // namespace tessera
