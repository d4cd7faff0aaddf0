// Cluster files: whatever the bytes, a file is refused with the line, or what it says is written
// out and read again as the same.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/toml_error.h"
#include "tessera/mesh/cluster.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  tessera::try_toml([&](std::string_view source) {
    const tessera::Cluster cluster = tessera::parse_cluster(text, source);
    tessera::require(tessera::parse_cluster(tessera::to_toml(cluster), source) == cluster);
  });
  return 0;
}
