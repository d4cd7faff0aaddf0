// Traces of steps: whatever the bytes, a file is refused with its name and the place, or what it
// says is written out and read again as the same.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/check.h"
#include "tessera/base/error.h"
#include "tessera/simulate/read_trace.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string written = tessera::chrome_json(tessera::parse_trace(text, "step.json"));
    tessera::require(tessera::chrome_json(tessera::parse_trace(written, "again.json")) == written);
  } catch (const tessera::Error& error) {
    tessera::require(error.code() == tessera::ErrorCode::kInvalidData);
    const std::string_view message = error.message();
    tessera::require(message.starts_with("step.json: "));
    tessera::require(tessera::has_number_behind(message, "line ") ||
                     tessera::has_number_behind(message, "byte "));
  }
  return 0;
}
