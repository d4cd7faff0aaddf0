// Tables of pipeline schedules: whatever the bytes, a table is refused with its place or its fault,
// or runs to its end and is written out and read again as the same.

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/check.h"
#include "tessera/actions/check.h"
#include "tessera/actions/csv.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/error.h"

namespace {

void try_table(std::string_view text) {
  const tessera::ActionTable table = tessera::parse_table(text, "fuzz.csv").table;
  const std::string written = tessera::to_csv(table);
  tessera::require(tessera::parse_table(written, "again.csv").table == table);
  tessera::check(table);
  const tessera::Timeline timeline = tessera::timeline(table);
  // Of a slice, a part of a tick that may be no number of f64.
  constexpr double kTicks = 3.0 * (1.0 - 1e-9);
  tessera::require(timeline.makespan >= kTicks * static_cast<double>(table.microbatches));
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kPlace = "fuzz.csv:";
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    try_table(text);
  } catch (const tessera::Error& error) {
    const std::string_view message = error.message();
    tessera::require(error.code() == tessera::ErrorCode::kInvalidConfig);
    tessera::require(!message.starts_with("again.csv"));
    tessera::require(!message.starts_with(kPlace) ||
                     std::isdigit(static_cast<unsigned char>(message[kPlace.size()])) != 0);
  }
  return 0;
}
