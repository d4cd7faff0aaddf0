#pragma once

#include <string>
#include <string_view>

#include "tessera/data/byte_stream.h"

namespace tessera {

// For tests: `bytes` as one member or frame of a compressed file.
std::string compressed(Compression compression, std::string_view bytes);

}  // namespace tessera
