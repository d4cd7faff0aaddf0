#pragma once

#include <functional>
#include <string_view>

#include "tessera/backend/backend.h"
#include "tessera/comm/collective_context.h"

namespace tessera {

// A backend on a device beside the CPU, for one of several ranks. It is made before its
// communicators, which move what lies in its memory.
class DeviceBackend : public Backend {
 public:
  // What moves the elements of a stream's collectives; streams 0 and 1.
  virtual const Mover& mover(StreamId stream) const = 0;

  // What the stream's collectives run on. Without, along no axis.
  virtual void set_communicators(StreamId stream, CommunicatorOf communicator_of) = 0;

  // What abort() calls: World::abort.
  virtual void set_abort(std::function<void(std::string_view reason)> abort) = 0;
};

}  // namespace tessera
