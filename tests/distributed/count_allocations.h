#pragma once

#include <cstdint>

namespace tessera {

// For programs that link count_allocations.cc, which replaces `malloc` and what else the C library
// allocates by, and with them `operator new`, for all of the process. Every thread may allocate
// meanwhile.

struct Allocations {
  std::int64_t made = 0;
  std::int64_t freed = 0;

  friend bool operator==(const Allocations&, const Allocations&) = default;
};

struct CountedAllocations {
  Allocations own;
  // Those made while the thread is in oneDNN's call that executes a primitive, which keeps its
  // arguments in a map of its own.
  Allocations of_products;
};

// Counts from 0, from now on.
void count_allocations();

// Those since then; counts no more.
CountedAllocations counted_allocations();

}  // namespace tessera
