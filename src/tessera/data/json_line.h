#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/base/json.h"

namespace tessera {

// What lines of JSON hold that JSON has no word for and other programs write all the same: NaN,
// Infinity and -Infinity (Python's json.dumps), and numbers that no double holds (1e999).

// `line` with an object in place of each such number, whose one key begins with kOddMark and goes
// on with the number as it is written: so the line can be read, and nothing can take the number for
// a value. Nothing where there is none.
inline constexpr char kOddMark = '\x01';
std::string with_marked_odd_numbers(std::string_view line);

// Whether `value` stands for an odd number.
bool is_odd_number(const nlohmann::json& value);

// Takes `line` as JSON, with marks of odd numbers; returns what is wrong with it, also where it, or
// an object in a list of its own or in a list of such an object, has a key twice.
std::string parse_json_line(std::string_view line, nlohmann::json& value);

// What a message says of a value that is found where another is expected: "a number". An odd number
// is what is written; the view lives as long as the value.
std::string_view kind_of(const nlohmann::json& value);

// The same, of numbers and texts what is written.
std::string as_written(const nlohmann::json& value);

// What is wrong with a line that is no JSON: "broken JSON at byte 23 of the line", from 1, and the
// word in a value's place that is found there; or of which other format it is (CSV, Python's dicts,
// JSON with comments, text sequences, several objects on a line), and what to do about it.
std::string describe_broken(std::string_view line);

// Whether a line has a zero byte, which parsers take for the end of the text.
bool has_zero(std::string_view line);

// Whether a line may be a row of CSV, or of a table with tabs: it begins with no bracket.
bool is_row(std::string_view line);

// A problem with a line, as one with a value that lies otherwise in its file.
std::string as_of_value(std::string problem);

// Whether a file with this front, all of it if `is_whole`, holds one list of values, or values that
// go on over several lines, where a value a line is expected.
bool spans_lines(std::string_view front, bool is_whole);

// Rewrites such a file, in pieces of any size, with a value a line. What is wrong between the
// values of a list (a comma that is not there, an end that is not there) comes as a line of its
// own, which describe_broken() knows.
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
  void begin_value(std::string& out);
  void end_value(std::string& out);
  void pass_between(char c);

  std::size_t depth_ = 0;  // in the value
  bool at_front_ = true;   // nothing but white space so far
  bool is_list_ = false;
  bool is_closed_ = false;  // the list
  bool has_comma_ = true;   // in front of the value that follows in a list
  bool in_value_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace tessera
