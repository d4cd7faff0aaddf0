#include "tessera/base/stream_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tessera {
namespace {

#ifdef __SSE2__

constexpr std::size_t kLineBytes = 64;
// Less may stay in the caches.
constexpr std::size_t kMinBytes = std::size_t{16} << 10U;

// `to` is aligned to a line.
void stream_line(std::byte* to, const std::byte* from) {
  for (std::size_t i = 0; i < kLineBytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

#endif

}  // namespace

void stream_copy(std::byte* to, std::span<const std::byte> from) {
#ifdef __SSE2__
  if (from.size() >= kMinBytes) {
    const std::size_t lead = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLineBytes;
    std::memcpy(to, from.data(), lead);
    std::size_t done = lead;
    for (; done + kLineBytes <= from.size(); done += kLineBytes) {
      stream_line(to + done, from.data() + done);
    }
    // Other threads see these stores in order again.
    _mm_sfence();
    to += done;
    from = from.subspan(done);
  }
#endif
  if (!from.empty()) {
    std::memcpy(to, from.data(), from.size());
  }
}

}  // namespace tessera
