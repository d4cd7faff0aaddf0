#include "tessera/backend/cpu/context.h"

#include <omp.h>

#include "tessera/backend/cpu/primitive_cache.h"
#include "tessera/base/error.h"

namespace tessera::cpu {

Context::Context(int threads)
    : CollectiveContext(std::make_unique<HostMover>(threads)), threads_(threads) {
  TESSERA_REQUIRE(threads >= 1, ErrorCode::kInvalidArgument, "{} threads", threads);
  omp_set_num_threads(threads);
  primitives_ = std::make_unique<PrimitiveCache>();
}

Context::~Context() = default;

}  // namespace tessera::cpu
