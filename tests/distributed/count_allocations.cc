#include "tests/distributed/count_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): operators of all of the process
std::atomic<bool> is_counting = false;
std::atomic<std::int64_t> num_made = 0;
std::atomic<std::int64_t> num_freed = 0;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

void* counted(std::size_t bytes, std::size_t alignment) {
  if (is_counting) {
    ++num_made;
  }
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void* counted_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  try {
    return counted(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void freed(void* memory) {
  if (is_counting && memory != nullptr) {
    ++num_freed;
  }
  std::free(memory);
}

}  // namespace

namespace tessera {

void count_allocations() {
  num_made = 0;
  num_freed = 0;
  is_counting = true;
}

Allocations counted_allocations() {
  is_counting = false;
  return {.made = num_made, .freed = num_freed};
}

}  // namespace tessera

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}

void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return counted_or_null(bytes, alignof(std::max_align_t));
}

void* operator new(std::size_t bytes,
                   std::align_val_t alignment,
                   const std::nothrow_t& /*tag*/) noexcept {
  return counted_or_null(bytes, static_cast<std::size_t>(alignment));
}

void operator delete(void* memory) noexcept {
  freed(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  freed(memory);
}

void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  freed(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  freed(memory);
}
