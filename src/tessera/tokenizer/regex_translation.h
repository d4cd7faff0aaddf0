#pragma once

#include <string>
#include <string_view>

namespace tessera {

// A pattern that was written for Oniguruma (its Ruby syntax), as PCRE2 is to read it. Errors:
// kUnsupported naming what the two would read differently, and its offset; kInvalidData where a set
// is not closed.
std::string translate_pattern(std::string_view pattern);

}  // namespace tessera
