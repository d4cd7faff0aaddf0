#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/base/units.h"

int main() {
  const std::int64_t bytes = 1536;
  TESSERA_REQUIRE(bytes > 0, tessera::ErrorCode::kInvalidArgument, "bytes is {}", bytes);
  std::puts(tessera::format_bytes(bytes).c_str());
}
