#pragma once

#include <string>
#include <string_view>

namespace tessera {

// `text` with each occurrence of `from`, which is not empty, replaced, from left to right.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// `text` with ASCII's capital letters as small ones.
std::string without_capitals(std::string_view text);

// `text` as a terminal or a log may have it: U+FFFD for what is not UTF-8, and "\x1b" for a control
// character other than a line feed or tab. Names and values of files of others come to be printed.
std::string printable(std::string_view text);

}  // namespace tessera
