#pragma once

#include <memory>

#include "tessera/comm/collective_context.h"

namespace tessera::cpu {

class PrimitiveCache;  // oneDNN primitives by attributes and types; backend/cpu/primitive_cache.h

// What CPU kernels of one stream share: the number of threads of its OpenMP team, the primitive
// cache, and what collectives run on. One thread uses a context at a time. Kernels open their
// parallel regions with num_threads(context.threads()), so that own kernels and oneDNN run on one
// team.
class Context : public CollectiveContext {
 public:
  // Sets the calling thread's OpenMP team size, which oneDNN goes by: the context that runs its
  // products is the last that the rank's thread constructs.
  explicit Context(int threads);
  ~Context();

  int threads() const { return threads_; }

  PrimitiveCache& primitives() { return *primitives_; }

 private:
  int threads_;
  std::unique_ptr<PrimitiveCache> primitives_;
};

}  // namespace tessera::cpu
