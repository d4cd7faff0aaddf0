#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "tessera/base/random.h"
#include "tessera/ir/ids.h"
#include "tessera/ir/op.h"
#include "tessera/ir/view.h"

namespace tessera {

class Channel;  // comm/channel.h
class World;    // comm/communicator.h

// One stretch of device memory, zeroed, freed on destruction. The host sees it as memory of its
// own: the same on a CPU, else a mirror, which holds what was last copied either way.
class Arena {
 public:
  Arena() = default;
  virtual ~Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Its address on the device, which kernels get.
  virtual std::byte* data() = 0;

  // Where the host reads and writes it.
  virtual std::byte* host() = 0;

  bool has_mirror() { return host() != data(); }

  // Copies bytes [offset, offset + bytes) from the host's side to the device's, where what stream 0
  // is given from now on finds them, or back, and returns when they are there; nothing where the
  // two are one. No run() may be under way on the device. Errors: kDeviceError.
  virtual void to_device(std::int64_t offset, std::int64_t bytes) = 0;
  virtual void to_host(std::int64_t offset, std::int64_t bytes) = 0;
};

// Memory that the host and the kernels share.
class HostArena : public Arena {
 public:
  std::byte* host() final { return data(); }

  void to_device(std::int64_t /*offset*/, std::int64_t /*bytes*/) final {}

  void to_host(std::int64_t /*offset*/, std::int64_t /*bytes*/) final {}
};

// Work of a device that was recorded.
class Recording {
 public:
  Recording() = default;
  virtual ~Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Begins all of it, as the run()s that were recorded would.
  virtual void replay() = 0;
};

// A send or receive of a program, on one of its streams.
struct PlacedTransfer {
  const Op* op = nullptr;
  StreamId stream;
};

// What executes instructions on one rank's device. Used from the rank's own thread, but for run()
// on streams other than the first and abort().
class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string_view name() const = 0;

  // Memory for `bytes`, aligned to 4096. Errors: kOutOfMemory.
  virtual std::unique_ptr<Arena> allocate(std::int64_t bytes) = 0;

  // The same of the host's memory, which kernels reach as well, and which has no mirror.
  virtual std::unique_ptr<Arena> allocate_host(std::int64_t bytes) { return allocate(bytes); }

  // Draws the elements of a tensor without gaps, f32 or bf16 (rounded), and returns when they are
  // there. The same bits on every backend.
  virtual void draw(const Initial& initial, const View& out) = 0;

  // Workspace that run() needs for tensors that lie like these views (data is not read).
  virtual std::int64_t workspace_bytes(const Op& op,
                                       std::span<const View> operands,
                                       std::span<const View> results) = 0;

  // Executes one op as the next of a stream (a program's stream 0 is the rank's own thread).
  // Equal arguments give equal bits, whatever the stream. One thread at a time uses a stream, and
  // several streams may run at once. It may return before the op is done; then what follows on the
  // stream waits for it, and synchronize() reports what it failed with.
  virtual void run(const Op& op, const Views& views, StreamId stream) = 0;

  // Whether run() only begins work on every stream: then the rank's own thread gives it the ops of
  // all streams, in the program's order, and signal() and wait() say what of one waits for another.
  // Otherwise each stream has a thread, and the host orders them.
  virtual bool orders_streams() const { return false; }

  // The run that this rank is one of; null where it is alone.
  virtual World* world() { return nullptr; }

  // What moves the tensor of a send or receive, whose run() returns when the other end has come:
  // who has many under way gives their memory to the channels instead. Null for other ops, where
  // nothing moves, and where run() only begins it.
  virtual Channel* channel(const Op& /*op*/) { return nullptr; }

  // Makes ready what moves the tensors of these: by the rank's own thread before the first of them
  // runs, and before channel() is asked for one. Where run() only begins them, both ends wait for
  // each other, so that every rank gives its own in the order of their channels' axes and places.
  virtual void make_channels(std::span<const PlacedTransfer> /*transfers*/) {}

  // What the rank's own thread calls before it lets another stream's go on: run() there then comes
  // after all that stream 0 was given up to here.
  virtual void hand_over() {}

  // Gives what `stream` has been given so far a number, which is then the number's only meaning;
  // and lets what `stream` is given from now on begin when that is done, or at once where nothing
  // has the number. Numbers are forgotten where a recording begins and ends, and in synchronize().
  virtual void signal(std::size_t /*number*/, StreamId /*stream*/) {}

  virtual void wait(std::size_t /*number*/, StreamId /*stream*/) {}

  // Whether run() of this op with such operands may be recorded, on stream 0, or on any where the
  // backend orders them: it begins the same work whenever it gets the same arguments, and the host
  // waits for nothing.
  virtual bool records(const Op& /*op*/, std::span<const TensorType> /*operands*/) const {
    return false;
  }

  // Records what `runs` gives to run(), ops that records() says so of, with signal() and wait()
  // between them, instead of running it. Each of them must have run before. A replay begins when
  // stream 0 is done with what it was given, and what stream 0 is given next when all of the replay
  // is done. Errors: kDeviceError.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& /*runs*/) {
    return nullptr;
  }

  // Returns when all that run() began is done. Errors: what kernels fail with; kDeviceError.
  virtual void synchronize() = 0;

  // Ends every run() of any stream that waits for other ranks, on all of them, with kPeerFailure
  // and `reason`.
  virtual void abort(std::string_view reason) = 0;
};

}  // namespace tessera
