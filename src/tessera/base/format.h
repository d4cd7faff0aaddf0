#pragma once

// The one header that names the formatting library: everything else writes tessera::format.

#include <fmt/core.h>

namespace tessera {
using fmt::format;
}  // namespace tessera
