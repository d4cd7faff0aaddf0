// Megatron indexes: whatever the bytes, an index is refused with its name or can be read whole.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/data/megatron.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const tessera::MegatronIndex index(std::as_bytes(std::span(data, size)), "fuzz.idx");
    std::int64_t before = 0;
    for (std::int64_t i = 0; i <= index.num_documents(); ++i) {
      const std::int64_t start = index.document_start(i);
      if (start < before || start > index.num_tokens()) {
        std::abort();
      }
      before = start;
    }
  } catch (const tessera::Error& error) {
    if (error.message().find("fuzz.idx: ") != 0) {
      std::abort();
    }
  }
  return 0;
}
