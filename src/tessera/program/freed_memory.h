#pragma once

#include <cstdint>
#include <map>

#include "tessera/program/stream_clocks.h"

namespace tessera {

// Who used the bytes last that ended buffers held in the arena.
class FreedMemory {
 public:
  bool empty() const { return stretches_.empty(); }

  // Bytes [begin, end), of which nothing is known, were used by these.
  void add(std::int64_t begin, std::int64_t end, const Uses& uses);

  // The uses of all bytes of [begin, end), of which nothing is known then.
  Uses take(std::int64_t begin, std::int64_t end);

 private:
  struct Stretch {
    std::int64_t end = 0;
    Uses uses;
  };

  // Afterwards no stretch holds both `at - 1` and `at`.
  void cut(std::int64_t at);

  std::map<std::int64_t, Stretch> stretches_;  // by begin; they do not overlap
};

}  // namespace tessera
