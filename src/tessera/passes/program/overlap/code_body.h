#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/program/program.h"

namespace tessera {

// The stream of collectives that carry training state.
inline constexpr StreamId kCommStream = {1};

inline bool is_comm(const Instruction& instruction) {
  return instruction.stream == kCommStream;
}

bool is_gather(const Instruction& instruction);

// Of gradients, to slices or whole.
bool is_reduction(const Instruction& instruction);

// Whether both touch one buffer and one of them writes it. As verify() does, this looks at whole
// buffers.
bool conflict(const Instruction& a, const Instruction& b);

// Calls visit(buffer) for what the instruction reads, writes and works in.
template <class Visit>
void for_each_buffer(const Instruction& instruction, const Visit& visit) {
  for (const auto* tensors : {&instruction.operands, &instruction.results}) {
    for (const TensorRef& tensor : *tensors) {
      visit(tensor.buffer);
    }
  }
  if (instruction.workspace.valid()) {
    visit(instruction.workspace);
  }
}

// The work of a code while overlap() changes it: its variants keep step.
struct CodeBody {
  Code code;
  // The one that is called first comes last: the others touch what it touches, and maybe more.
  std::vector<Segment> variants;
  // By instruction. A block is a stretch of computation of one layer; what runs on the comm stream
  // belongs to the computation before it. In the update a gather ends the block.
  std::vector<std::int64_t> blocks = {};

  std::int32_t size() const {
    return static_cast<std::int32_t>(variants.front().instructions.size());
  }

  const Instruction& operator[](std::int32_t i) const {
    return variants.front().instructions[static_cast<std::size_t>(i)];
  }

  std::int64_t block(std::int32_t i) const { return blocks[static_cast<std::size_t>(i)]; }

  std::int64_t num_blocks() const { return size() > 0 ? block(size() - 1) + 1 : 0; }

  void find_blocks();

  // Takes instruction i out of all variants; `insert` puts it in before i.
  Instruction extract(std::int32_t i);
  void insert(std::int32_t i, const Instruction& instruction);

  // Those of which `which`, by instruction, is true.
  void remove(const std::vector<bool>& which);

  // The first computation from `from` on of `block` or a later one.
  std::optional<std::int32_t> begin_of_block(std::int64_t block, std::int32_t from = 0) const;

  // The first computation in [from, end) that may not run beside `by`.
  std::optional<std::int32_t> first_conflict(const Instruction& by,
                                             std::int32_t from,
                                             std::int32_t end) const;
};

}  // namespace tessera
