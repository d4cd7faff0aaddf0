#pragma once

#include <functional>
#include <string_view>

#include "tessera/backend/backend.h"
#include "tessera/comm/collective_context.h"

struct CUstream_st;  // of the CUDA runtime, where cudaStream_t is a pointer to it

namespace tessera {

// A backend on a device beside the CPU, for one of several ranks. It is made before its
// communicators, which move what lies in its memory.
class DeviceBackend : public Backend {
 public:
  // What moves the elements of a stream's collectives; streams 0 and 1.
  virtual const Mover& mover(StreamId stream) const = 0;

  // What the stream's collectives run on. Without, along no axis.
  virtual void set_communicators(StreamId stream, CommunicatorOf communicator_of) = 0;

  // Where the stream's kernels are enqueued; null where it is none of CUDA's.
  virtual CUstream_st* native_stream(StreamId stream) const = 0;

  // CUDA's number of the device.
  virtual int ordinal() const = 0;

  // What returns when the collectives that both streams were given are done, and throws where they
  // take too long: of communicators that only enqueue. From then on the backend orders_streams(),
  // and synchronize() calls it.
  virtual void set_wait(std::function<void()> wait) = 0;

  // What abort() calls: World::abort.
  virtual void set_abort(std::function<void(std::string_view reason)> abort) = 0;
};

}  // namespace tessera
