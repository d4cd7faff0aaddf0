#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "tessera/base/direct_file.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_part.h"

namespace tessera {

// The memory of a copy of these, which need no data yet, in files of at most max_file_bytes.
std::size_t part_copy_bytes(std::span<const CheckpointTensor> tensors,
                            std::int64_t max_file_bytes = SaveOptions().max_file_bytes);

// A copy of what a rank writes, so that training may change the tensors meanwhile. The memory is
// kept for the next save.
class PartCopy {
 public:
  // Takes the memory, unless it has as much. What an earlier copy holds may be lost.
  void reserve(std::size_t bytes);

  // The memory that it has taken so far.
  std::int64_t memory_bytes() const { return std::ssize(memory_.bytes()); }

  // Copies the data of the files with this many threads; the files then point to the copy.
  // reserve() has taken enough memory.
  void take(std::span<PartFile> files, int threads);

 private:
  PageBuffer memory_;
};

}  // namespace tessera
