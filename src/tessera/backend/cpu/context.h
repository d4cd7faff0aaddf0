#pragma once

#include <memory>

#include "tessera/base/thread_team.h"
#include "tessera/comm/collective_context.h"

namespace tessera::cpu {

class PrimitiveCache;  // oneDNN primitives by attributes and types; backend/cpu/primitive_cache.h

// What CPU kernels of one stream share: a team of threads, the primitive cache, and what
// collectives run on. One thread uses a context at a time. OneDNN runs on each thread of the team
// by itself.
class Context : public CollectiveContext {
 public:
  explicit Context(int threads);
  ~Context();

  ThreadTeam& team() { return *team_; }

  int threads() const { return team_->size(); }

  PrimitiveCache& primitives() { return *primitives_; }

 private:
  explicit Context(std::unique_ptr<ThreadTeam> team);

  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<PrimitiveCache> primitives_;
};

}  // namespace tessera::cpu
