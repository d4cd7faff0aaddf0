// Plans as text: whatever the bytes, a text is refused with its source, or what it says is written
// out and read again as the same.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/toml_error.h"
#include "tessera/plan/plan.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  tessera::try_toml([&](std::string_view source) {
    const std::string written = to_string(tessera::parse_plan(text, source));
    tessera::require(to_string(tessera::parse_plan(written, "again.toml")) == written);
  });
  return 0;
}
