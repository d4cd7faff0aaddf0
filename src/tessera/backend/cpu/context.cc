#include "tessera/backend/cpu/context.h"

#include <memory>
#include <utility>

#include "tessera/backend/cpu/primitive_cache.h"

namespace tessera::cpu {

Context::Context(int threads) : Context(std::make_unique<ThreadTeam>(threads)) {}

Context::Context(std::unique_ptr<ThreadTeam> team)
    : CollectiveContext(std::make_unique<HostMover>(*team)),
      team_(std::move(team)),
      primitives_(std::make_unique<PrimitiveCache>(team_->size())) {}

Context::~Context() = default;

}  // namespace tessera::cpu
