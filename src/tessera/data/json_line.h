#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/base/json.h"

namespace tessera {

// What lines of JSON hold that JSON has no word for and other programs write all the same: NaN,
// Infinity and -Infinity (Python's json.dumps), and numbers that no double holds (1e999).

// `line` with an empty object in place of each such number, so that it can be read, and nothing can
// take it for a value; nothing where there is none.
std::string without_odd_numbers(std::string_view line);

// Takes `line` as JSON; returns what is wrong with it. Odd numbers are empty objects in `value`,
// and `has_odd_numbers` says so.
std::string parse_json_line(std::string_view line, nlohmann::json& value, bool& has_odd_numbers);

// What a message says of a value that is found where another is expected: "a number".
std::string_view kind_of(const nlohmann::json& value);

// What a problem with a line that has odd numbers ends with.
inline constexpr std::string_view kOddNumbers =
    " (the line has numbers that JSON does not: NaN, Infinity, or beyond 1.8e308)";

// "broken JSON at byte 23 of the line", from 1, and the word in a value's place that is found
// there.
std::string describe_broken(std::string_view line, std::size_t byte);

// Whether a file with this front, all of it if `is_whole`, holds one list of values, or values that
// go on over several lines, where a value a line is expected.
bool spans_lines(std::string_view front, bool is_whole);

// Rewrites such a file, in pieces of any size, with a value a line.
class LineJoiner {
 public:
  // Appends what `bytes` give to `out`.
  void push(std::string_view bytes, std::string& out);

  // The end of the file.
  void flush(std::string& out);

 private:
  void put(char c, std::string& out);
  void put_in_string(char c, std::string& out);
  void put_in_value(char c, std::string& out);
  void end_value(std::string& out);

  std::size_t depth_ = 0;  // in the value
  bool at_front_ = true;   // nothing but white space so far
  bool in_value_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace tessera
