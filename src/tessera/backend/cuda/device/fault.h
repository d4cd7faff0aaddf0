#pragma once

#include <cstdint>

namespace tessera::cuda {

// What a kernel may find wrong with its data.
enum class FaultKind : std::int32_t { kNone, kEmbeddingId, kTakeIndex, kWriteRowsSlot, kLabel };

// The first fault that a kernel reports; kernels go on without the value that was wrong.
struct Fault {
  std::int32_t kind = 0;   // a FaultKind
  std::int32_t value = 0;  // what was found,
  std::int64_t place = 0;  // where,
  std::int64_t limit = 0;  // and what it must be less than
};

// Throws kInvalidData with what `fault` says, in the words of the CPU's kernels; nothing for none.
void throw_fault(const Fault& fault);

}  // namespace tessera::cuda
