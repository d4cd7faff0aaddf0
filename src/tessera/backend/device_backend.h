#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/backend/backend.h"
#include "tessera/comm/collective_context.h"
#include "tessera/mesh/traffic.h"

struct CUstream_st;  // of the CUDA runtime, where cudaStream_t is a pointer to it

namespace tessera {

// Communicators of a library of the devices, which only enqueue what the device then does.
struct NativeCollectives {
  // Returns when what all streams were given is done, and throws where a collective takes too
  // long. Part of synchronize().
  std::function<void()> wait = nullptr;

  // Returns when `is_done` says so, and throws meanwhile as `wait` does: a collective that hangs
  // must not let the host wait in a call that knows no deadline.
  std::function<void(const std::function<bool()>& is_done)> watch = nullptr;

  // Returns when all ranks have come here. Part of record(): no replay waits for a rank whose
  // driver is still making a graph ready, which may wait for the devices of all of a process's.
  std::function<void()> meet = nullptr;

  // What this rank has sent by them, and the addition to that: of a recording, whose collectives
  // the communicators see once, however often it is replayed.
  std::function<Traffic()> sent = nullptr;
  std::function<void(const Traffic& more)> add_sent = nullptr;
};

// A rank's channels, whose transfers `mover` moves, or the library on the mover's stream.
using ChannelsOf = std::function<ChannelOf(const Mover& mover)>;

// Which of a library's algorithms for matrix products: all that a device's backend knows, or what
// it found by timing them.
enum class ProductChoices { kKnown, kTimed };

// A backend on a device beside the CPU, for one of several ranks. It is made before its
// communicators, which move what lies in its memory.
class DeviceBackend : public Backend {
 public:
  // What moves the elements of a stream's collectives; streams 0 and 1.
  virtual const Mover& mover(StreamId stream) const = 0;

  // What the stream's collectives run on. Without, along no axis.
  virtual void set_communicators(StreamId stream, CommunicatorOf communicator_of) = 0;

  // The run that the backend's rank is one of, and what it sends and receives by. Borrows the
  // world. Without, along no axis.
  virtual void set_channels(World& world, ChannelsOf channels_of) = 0;

  // Where the kernels of stream 0 or 1, or of one of the backend's movers, are enqueued; null where
  // that is none of CUDA's.
  virtual CUstream_st* native_stream(StreamId stream) const = 0;
  virtual CUstream_st* native_stream(const Mover& mover) const = 0;

  // CUDA's number of the device.
  virtual int ordinal() const = 0;

  // From then on the communicators only enqueue, and the backend orders_streams().
  virtual void set_native(NativeCollectives native) = 0;

  // Frees what the recordings hold, of which none is replayed any more.
  virtual void drop_recordings() = 0;

  // Of several ranks that compute the same products, each on a device of its own, each times the
  // algorithms of a product that it does not know when it first meets it, until all have heard of
  // each other's choices: from then on they compute alike, and time no more. Whether this is one of
  // them:
  virtual bool shares_product_choices() const { return false; }

  // The choices as text, for take_product_choices().
  virtual std::string product_choices(ProductChoices /*which*/) const { return {}; }

  // From the next product on, which is not recorded yet: what the ranks say, in their order, of
  // whom the first that speaks of a product decides.
  virtual void take_product_choices(ProductChoices /*which*/,
                                    std::span<const std::string> /*of_ranks*/) {}

  // What abort() calls: World::abort.
  virtual void set_abort(std::function<void(std::string_view reason)> abort) = 0;
};

}  // namespace tessera
