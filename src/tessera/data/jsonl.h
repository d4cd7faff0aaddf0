#pragma once

#include <string>
#include <string_view>

namespace tessera {

// The text that the JSON object `line` has under `field`, a key of the object itself, in place of
// what `text` held. Returns what is wrong with the line: nothing where `text` is its text; "found
// .., expected .." where it is no object, is broken, or has not one string there.
std::string parse_jsonl_line(std::string_view line, std::string_view field, std::string& text);

// Takes the next line off the front of `rest`, without its end: a line feed, a carriage return, or
// both, which may change from line to line.
std::string_view take_line(std::string_view& rest);

// Whether a line has nothing to read.
bool is_blank(std::string_view line);

}  // namespace tessera
