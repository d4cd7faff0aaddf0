#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tessera/program/lives.h"

namespace tessera {

// The instants of a step that differ in what lives, by number. Two lives meet only if one of them
// begins within the other, so that no instant counts but those at which lives begin; and of those
// at which the same buffers live, as in one microbatch after the other, the first stands for all.
class Instants {
 public:
  // Moments [begin, end).
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  // Errors: those of LifeWalk.
  explicit Instants(const Program& program);

  std::size_t size() const { return size_; }

  // When the buffer lives: in order, and at no instant where it never does.
  std::span<const Range> of(const BufferSlot& slot) const { return lives_[numbers_[slot]]; }

  // When the buffer lives first; the step's begin where it never does.
  const Instant& begin_of(const BufferSlot& slot) const { return first_[numbers_[slot]]; }

 private:
  SlotNumbers numbers_;
  std::size_t size_ = 0;
  std::vector<std::vector<Range>> lives_;  // by number
  std::vector<Instant> first_;             // by number
};

}  // namespace tessera
