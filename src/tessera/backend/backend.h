#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tessera/ir/ids.h"
#include "tessera/ir/op.h"
#include "tessera/ir/view.h"

namespace tessera {

// One stretch of device memory, zeroed, freed on destruction.
class Arena {
 public:
  Arena() = default;
  virtual ~Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  virtual std::byte* data() = 0;
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

  // Workspace that run() needs for tensors that lie like these views (data is not read).
  virtual std::int64_t workspace_bytes(const Op& op,
                                       std::span<const View> operands,
                                       std::span<const View> results) = 0;

  // Executes one op as the next of a stream (a program's stream 0 is the rank's own thread).
  // Equal arguments give equal bits, whatever the stream. One thread at a time uses a stream, and
  // several streams may run at once.
  virtual void run(const Op& op, const Views& views, StreamId stream) = 0;

  // Ends every run() of any stream that waits for other ranks, on all of them, with kPeerFailure
  // and `reason`.
  virtual void abort(std::string_view reason) = 0;
};

}  // namespace tessera
