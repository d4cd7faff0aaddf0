#pragma once

#include <algorithm>
#include <string_view>

#include "tessera/program/program.h"

namespace tessera {

// The streams of what moves between spaces.
inline constexpr std::string_view kFetchStream = "fetch";
inline constexpr std::string_view kStoreStream = "store";

// The stream of that name, which is added where there is none.
inline StreamId io_stream(Program& program, std::string_view name) {
  const auto found = std::ranges::find(program.streams, name);
  const auto index = static_cast<std::size_t>(found - program.streams.begin());
  if (found == program.streams.end()) {
    program.streams.emplace_back(name);
  }
  return StreamId::of(index);
}

}  // namespace tessera
