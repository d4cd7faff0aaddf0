#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "tessera/backend/backend.h"
#include "tessera/backend/cpu/context.h"

namespace tessera {

// What runs beside the rank's thread: the collectives of a program's second stream, in a thread of
// their own, which needs communicators of its own, and transfers and other collectives, on all
// further streams.
struct CpuCommStream {
  CommunicatorOf communicator_of;
  std::function<CommunicatorOf(StreamId stream)> of_further = nullptr;  // at its first op
  ChannelOf channel_of = nullptr;
  std::function<void(std::string_view reason)> abort = nullptr;  // World::abort
  World* world = nullptr;                                        // borrowed
  int threads = 1;                                               // folds are bound by memory
};

// The CPU backend on `threads` threads, of which the caller's is one. Collectives run on
// `communicator_of`; without it, along no axis.
std::unique_ptr<Backend> make_cpu_backend(int threads,
                                          CommunicatorOf communicator_of = nullptr,
                                          CpuCommStream comm = {});

}  // namespace tessera
