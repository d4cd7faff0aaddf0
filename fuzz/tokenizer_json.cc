#include "tessera/tokenizer/tokenizer_json.h"

#include <cstddef>
#include <cstdint>

#include "fuzz/check.h"
#include "fuzz/try_tokenizer.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::try_tokenizer({reinterpret_cast<const char*>(data), size},
                         tessera::names_encoding,
                         tessera::parse_tokenizer_json);
  return 0;
}
