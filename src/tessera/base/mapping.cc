#include "tessera/base/mapping.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <sys/mman.h>

#include "tessera/base/error.h"
#include "tessera/base/units.h"

namespace tessera {

Mapping::Mapping(std::size_t bytes, const char* what) : bytes_(bytes) {
  if (bytes_ == 0) {
    return;
  }
  void* const address = ::mmap(
      nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TESSERA_REQUIRE(address != MAP_FAILED,
                  ErrorCode::kOutOfMemory,
                  "cannot allocate {} for {}: {}",
                  format_bytes(static_cast<std::int64_t>(bytes_)),
                  what,
                  std::strerror(errno));
  data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    ::munmap(data_, bytes_);
  }
}

void Mapping::prefer_huge_pages() const {
  if (data_ != nullptr) {
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
  }
}

}  // namespace tessera
