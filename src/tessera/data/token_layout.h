#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/data/token_type.h"

namespace tessera {

// Where in a file of tokens its ids lie, up to its end, and how each is written.
struct TokenLayout {
  TokenType type = TokenType::kU16;
  std::int64_t offset = 0;  // bytes
};

// The layout of a file of bare ids, which are of `given` type, unless its bytes say otherwise: a
// NumPy array (.npy) of integers, whose rows follow each other, and llm.c's .bin. `name` names the
// file in errors: kInvalidData where it is empty or holds a part of an id, where an array is of
// another type or order, where llm.c's header is of another version or does not count what follows,
// and where the file is text or a container that is known (an archive, a Parquet file).
TokenLayout token_layout(std::span<const std::byte> bytes,
                         TokenType given,
                         const std::string& name);

}  // namespace tessera
