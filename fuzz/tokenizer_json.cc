#include "tessera/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/try_tokenizer.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The path of a value, at the beginning or in the message's context.
  const auto names_path = [](std::string_view what) {
    return what.starts_with('/') ||
           std::ranges::any_of(
               std::array{" /added_tokens", " /model", " /pre_tokenizer"},
               [&](const char* path) { return what.find(path) != std::string_view::npos; });
  };
  tessera::try_tokenizer(
      {reinterpret_cast<const char*>(data), size}, names_path, tessera::parse_tokenizer_json);
  return 0;
}
