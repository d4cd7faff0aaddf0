#include "tessera/backend/cpu/context.h"

#include <utility>

#include <omp.h>

#include "tessera/backend/cpu/primitive_cache.h"
#include "tessera/base/error.h"

namespace tessera::cpu {

Context::Context(int threads) : threads_(threads) {
  TESSERA_REQUIRE(threads >= 1, ErrorCode::kInvalidArgument, "{} threads", threads);
  omp_set_num_threads(threads);
  primitives_ = std::make_unique<PrimitiveCache>();
}

Context::~Context() = default;

void Context::set_communicators(CommunicatorOf communicator_of) {
  communicator_of_ = std::move(communicator_of);
}

Communicator& Context::communicator(std::string_view axis) const {
  TESSERA_REQUIRE(communicator_of_ != nullptr,
                  ErrorCode::kInvalidArgument,
                  "a collective along {}, but this rank is alone",
                  axis);
  return communicator_of_(axis);
}

}  // namespace tessera::cpu
