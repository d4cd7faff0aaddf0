#include "tests/distributed/count_allocations.h"

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include <dlfcn.h>

#include <oneapi/dnnl/dnnl.h>

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): of glibc, for who
// replaces malloc
extern "C" {
void* __libc_malloc(std::size_t bytes) noexcept;
void* __libc_calloc(std::size_t count, std::size_t bytes) noexcept;
void* __libc_realloc(void* memory, std::size_t bytes) noexcept;
void* __libc_memalign(std::size_t alignment, std::size_t bytes) noexcept;
void __libc_free(void* memory) noexcept;
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace {

struct Counters {
  std::atomic<std::int64_t> made = 0;
  std::atomic<std::int64_t> freed = 0;
};

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): functions of all of the process
std::atomic<bool> is_counting = false;
Counters own;
Counters of_products;
thread_local bool is_in_product = false;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

Counters& counters() {
  return is_in_product ? of_products : own;
}

void* counted(void* memory) {
  if (is_counting && memory != nullptr) {
    ++counters().made;
  }
  return memory;
}

void count_freed(const void* memory) {
  if (is_counting && memory != nullptr) {
    ++counters().freed;
  }
}

tessera::Allocations value_of(const Counters& counters) {
  return {.made = counters.made, .freed = counters.freed};
}

}  // namespace

namespace tessera {

void count_allocations() {
  for (Counters* const counters : {&own, &of_products}) {
    counters->made = 0;
    counters->freed = 0;
  }
  is_counting = true;
}

CountedAllocations counted_allocations() {
  is_counting = false;
  return {.own = value_of(own), .of_products = value_of(of_products)};
}

}  // namespace tessera

// With the headers' names of parameters.
extern "C" {

void* malloc(std::size_t size) noexcept {
  return counted(__libc_malloc(size));
}

void* calloc(std::size_t nmemb, std::size_t size) noexcept {
  return counted(__libc_calloc(nmemb, size));
}

void* realloc(void* ptr, std::size_t size) noexcept {
  count_freed(ptr);
  return counted(__libc_realloc(ptr, size));
}

void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  return counted(__libc_memalign(alignment, bytes));
}

void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  return counted(__libc_memalign(alignment, size));
}

int posix_memalign(void** memptr, std::size_t alignment, std::size_t size) noexcept {
  if (alignment % sizeof(void*) != 0 || !std::has_single_bit(alignment)) {
    return EINVAL;
  }
  void* const found = counted(__libc_memalign(alignment, size));
  if (found == nullptr) {
    return ENOMEM;
  }
  *memptr = found;
  return 0;
}

void free(void* ptr) noexcept {
  count_freed(ptr);
  __libc_free(ptr);
}

// The library's function of the same name, with what it allocates told apart.
dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                     dnnl_stream_t stream,
                                     int nargs,
                                     const dnnl_exec_arg_t* args) {
  using Execute = decltype(&dnnl_primitive_execute);
  static const auto kExecute =
      reinterpret_cast<Execute>(::dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  is_in_product = true;
  const dnnl_status_t status = kExecute(primitive, stream, nargs, args);
  is_in_product = false;
  return status;
}

}  // extern "C"
