#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include <sys/mman.h>

namespace tessera {

// Memory as the program's arena has it: on huge pages where the system offers them.
class HugeMemory {
 public:
  explicit HugeMemory(std::size_t bytes) : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
    data_ = static_cast<float*>(std::aligned_alloc(kHugePage, bytes_));
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
    std::fill_n(data_, bytes_ / sizeof(float), 1.0F);
  }

  ~HugeMemory() { std::free(data_); }

  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;

  float* data() const { return data_; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20U;

  std::size_t bytes_;
  float* data_;
};

}  // namespace tessera
