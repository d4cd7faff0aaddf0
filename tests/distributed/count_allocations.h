#pragma once

#include <cstdint>

namespace tessera {

// For programs that link count_allocations.cc, which replaces `operator new` for all of the
// process. Every thread may allocate meanwhile.

struct Allocations {
  std::int64_t made = 0;
  std::int64_t freed = 0;
};

// Counts from 0, from now on.
void count_allocations();

// Those since then; counts no more.
Allocations counted_allocations();

}  // namespace tessera
