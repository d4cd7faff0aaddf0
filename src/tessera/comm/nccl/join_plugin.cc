#include "tessera/comm/nccl/join_under_test.h"

namespace tessera {

std::unique_ptr<NcclWorld> join_under_test(World& host, const NcclOptions& options) {
  return join_nccl_world(host, options);
}

double short_deadline_seconds() {
  return 10;
}

}  // namespace tessera
