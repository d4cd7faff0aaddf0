#pragma once

#include <cctype>
#include <string_view>

#include "fuzz/check.h"
#include "tessera/base/error.h"

namespace tessera {

// Runs `parse` of a file that it calls "fuzz.toml"; where it refuses the file, it must name a line,
// or its encoding.
template <class Parse>
void try_toml(const Parse& parse) {
  constexpr std::string_view kPlace = "fuzz.toml:";
  try {
    parse("fuzz.toml");
  } catch (const Error& error) {
    const std::string_view message = error.message();
    require(error.code() == ErrorCode::kInvalidConfig);
    require(message.starts_with(kPlace) && message.size() > kPlace.size() &&
            (std::isdigit(static_cast<unsigned char>(message[kPlace.size()])) != 0 ||
             names_encoding(message)));
  }
}

}  // namespace tessera
