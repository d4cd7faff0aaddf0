#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace tessera {

// When things happened on each stream: one counter a stream.
using Clock = std::vector<std::int64_t>;

// `clock` becomes the later of both, stream by stream.
void merge(Clock& clock, const Clock& other);

// When the bytes that ended buffers held in the arena were last used.
class FreedMemory {
 public:
  // Bytes [begin, end) were last used then, and what was known of them is forgotten.
  void add(std::int64_t begin, std::int64_t end, const Clock& last_use);

  // `clock` becomes the later of it and every last use of a byte of [begin, end).
  void merge_last_use(std::int64_t begin, std::int64_t end, Clock& clock) const;

 private:
  struct Stretch {
    std::int64_t end = 0;
    Clock last_use;
  };

  // Afterwards no stretch holds both `at - 1` and `at`.
  void cut(std::int64_t at);

  std::map<std::int64_t, Stretch> stretches_;  // by begin; they do not overlap
};

}  // namespace tessera
