// Megatron indexes: whatever the bytes, an index is refused with its name and the byte, or can
// be read whole.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "fuzz/check.h"
#include "tessera/base/error.h"
#include "tessera/data/megatron.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const tessera::MegatronIndex index(std::as_bytes(std::span(data, size)), "fuzz.idx");
    std::int64_t before = 0;
    for (std::int64_t i = 0; i <= index.num_documents(); ++i) {
      const std::int64_t start = index.document_start(i);
      tessera::require(start >= before && start <= index.num_tokens());
      before = start;
    }
  } catch (const tessera::Error& error) {
    tessera::require(error.code() == tessera::ErrorCode::kInvalidData);
    tessera::require(error.message().starts_with("fuzz.idx: byte ") &&
                     tessera::has_number_behind(error.message(), "byte "));
  }
  return 0;
}
