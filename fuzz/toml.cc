// Run files and cluster files: whatever the bytes, a file is refused with the line, or what it says
// is written out and read again as the same.

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/mesh/cluster.h"

namespace {

constexpr std::string_view kPlace = "fuzz.toml:";

// What no input may do.
void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

template <class Parse>
void try_parse(const Parse& parse) {
  try {
    parse();
  } catch (const tessera::Error& error) {
    const std::string_view message = error.message();
    require(error.code() == tessera::ErrorCode::kInvalidConfig);
    require(message.starts_with(kPlace) && message.size() > kPlace.size() &&
            std::isdigit(static_cast<unsigned char>(message[kPlace.size()])) != 0);
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_parse([&] {
    const tessera::RunConfig config = tessera::parse_run_config(text, "fuzz.toml");
    require(tessera::parse_run_config(tessera::to_toml(config), "again.toml") == config);
  });
  try_parse([&] {
    const tessera::Cluster cluster = tessera::parse_cluster(text, "fuzz.toml");
    require(tessera::parse_cluster(tessera::to_toml(cluster), "again.toml") == cluster);
  });
  return 0;
}
