#include "tessera/tokenizer/tiktoken.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/check.h"
#include "fuzz/try_tokenizer.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto names_line = [](std::string_view what) {
    return tessera::has_number_behind(what, "line ") || tessera::has_number_behind(what, "lines ");
  };
  tessera::try_tokenizer(
      {reinterpret_cast<const char*>(data), size}, names_line, [](std::string_view text) {
        return tessera::parse_tiktoken(text, "llama3");
      });
  return 0;
}
