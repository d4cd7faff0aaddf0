#include "tessera/tokenizer/tokenizer_json.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/try_tokenizer.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto names_nothing_else = [](std::string_view) { return false; };
  tessera::try_tokenizer({reinterpret_cast<const char*>(data), size},
                         names_nothing_else,
                         tessera::parse_tokenizer_json);
  return 0;
}
