#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace tessera {

class Communicator;

// This rank's communicator along a mesh axis. Errors: kInvalidArgument for an unknown axis.
using CommunicatorOf = std::function<Communicator&(std::string_view axis)>;

}  // namespace tessera

namespace tessera::cpu {

class PrimitiveCache;  // oneDNN primitives by attributes and types; backend/cpu/primitive_cache.h

// What CPU kernels share: the number of threads of this rank's OpenMP team, and the primitive
// cache. One rank thread uses a context at a time. Kernels open their parallel regions with
// num_threads(context.threads()), so that own kernels and oneDNN run on one team.
class Context {
 public:
  // Sets the calling thread's OpenMP team size: construct and use on the rank's own thread.
  explicit Context(int threads);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const { return threads_; }

  PrimitiveCache& primitives() { return *primitives_; }

  // What collectives run on; a context without can run programs of one rank.
  void set_communicators(CommunicatorOf communicator_of);

  // Errors: kInvalidArgument where the context has no communicator along the axis.
  Communicator& communicator(std::string_view axis) const;

 private:
  int threads_;
  std::unique_ptr<PrimitiveCache> primitives_;
  CommunicatorOf communicator_of_;
};

}  // namespace tessera::cpu
