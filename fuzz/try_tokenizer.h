#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/check.h"
#include "tessera/base/error.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// What must hold of every tokenizer that a file is read into: it encodes any bytes, and where it
// says so, decoding gives them back. Errors of the file are fine where they name a byte, or
// what `names_place` takes for a place in such a file; anything else ends the program.
template <class Parse, class NamesPlace>
void try_tokenizer(std::string_view file, const NamesPlace& names_place, const Parse& parse) {
  constexpr std::size_t kTextBytes = 256;
  try {
    const Tokenizer tokenizer(parse(file));
    const std::string text(file.substr(0, kTextBytes));
    for (const bool special : {false, true}) {
      const std::vector<std::int32_t> ids =
          tokenizer.encode(text, {.parse_special = special, .add_special = special});
      const bool in_range = std::ranges::all_of(
          ids, [&](std::int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); });
      const std::string decoded = tokenizer.decode(ids, {.skip_special = special});
      TESSERA_CHECK(in_range, "an id is out of range");
      TESSERA_CHECK(special || !tokenizer.is_lossless() || decoded == text, "the text changed");
    }
  } catch (const Error& error) {
    const std::string_view what = error.what();
    TESSERA_CHECK(
        has_number_behind(what, "byte ") || names_place(what), "no place in \"{}\"", what);
    if (error.code() == ErrorCode::kInternal) {
      throw;
    }
  }
}

}  // namespace tessera
