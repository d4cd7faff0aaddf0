#include "tessera/data/json_line.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/base/utf8.h"

namespace tessera {
namespace {

using nlohmann::json;
using namespace std::string_view_literals;

constexpr std::string_view kSpace = " \t\r\n";

// Begins a line that says what is wrong between the values of a list; no JSON begins with it.
constexpr char kDefect = '\x02';

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::array kOddWords = {"NaN"sv, "Infinity"sv, "-Infinity"sv};

// Where the first value of a text may stand: after the byte order mark of a file's first line and
// white space.
std::size_t front_of(std::string_view text) {
  const std::size_t mark = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  return std::min(text.find_first_not_of(kSpace, mark), text.size());
}

// The odd number at the front of `text`; empty where there is none.
std::string_view front_odd_number(std::string_view text) {
  for (const std::string_view word : kOddWords) {
    if (text.starts_with(word)) {
      return word;
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc::result_out_of_range
             ? text.substr(0, static_cast<std::size_t>(end - text.data()))
             : std::string_view();
}

bool is_word_byte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.' || c == '_';
}

// Behind the string whose opening quote is at `at`.
std::size_t string_end(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    at += text[at] == '\\' ? 1 : 0;
  }
  return std::min(at + 1, text.size());
}

// Behind the list or object at the front of `text`; nothing where it does not end there, or a line
// ends in one of its strings.
struct ValueEnd {
  std::optional<std::size_t> at;
  bool has_broken_string = false;
};

ValueEnd find_end(std::string_view text) {
  std::size_t depth = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      const std::size_t end = string_end(text, at);
      if (text.substr(at, end - at).find_first_of("\r\n") != std::string_view::npos) {
        return {.at = std::nullopt, .has_broken_string = true};
      }
      at = end;
      continue;
    }
    depth += c == '{' || c == '[' ? 1 : 0;
    depth -= (c == '}' || c == ']') && depth > 0 ? 1 : 0;
    ++at;
    if (depth == 0) {
      return {.at = at};
    }
  }
  return {};
}

// Finds out whether a text is JSON as far as it goes.
class FrontProbe : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }

  bool boolean(bool /*value*/) override { return true; }

  bool number_integer(std::int64_t /*value*/) override { return true; }

  bool number_unsigned(std::uint64_t /*value*/) override { return true; }

  bool number_float(double /*value*/, const std::string& /*written*/) override { return true; }

  bool string(std::string& /*value*/) override { return true; }

  bool binary(json::binary_t& /*value*/) override { return true; }

  bool start_object(std::size_t /*elements*/) override { return true; }

  bool key(std::string& /*value*/) override { return true; }

  bool end_object() override { return true; }

  bool start_array(std::size_t /*elements*/) override { return true; }

  bool end_array() override { return true; }

  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    broken_at_ = position;
    return false;
  }

  // The byte that cannot stand where it does, from 1; 0: there is none.
  std::size_t broken_at() const { return broken_at_; }

 private:
  std::size_t broken_at_ = 0;
};

// Calls odd(begin, end) with each odd number of `line`, front to back.
template <class Odd>
void for_each_odd_number(std::string_view line, const Odd& odd) {
  for (std::size_t at = 0; at < line.size();) {
    const char c = line[at];
    if (c == '"') {
      at = string_end(line, at);
      continue;
    }
    if (!is_word_byte(c)) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < line.size() && is_word_byte(line[end])) {
      ++end;
    }
    const std::string_view found = front_odd_number(line.substr(at));
    if (!found.empty() && found.size() == end - at) {
      odd(at, end);
    }
    at = end;
  }
}

// The byte of `text`, from 1, at which it is no JSON; 0 where it is, odd numbers too.
std::size_t find_broken(std::string_view text) {
  std::string plain(text);
  for_each_odd_number(text, [&](std::size_t begin, std::size_t end) {
    plain.replace(begin, end - begin, end - begin, ' ');
    plain[begin] = '0';
  });
  FrontProbe probe;
  json::sax_parse(plain.begin(), plain.end(), &probe);
  return probe.broken_at();
}

// Finds a key that an object has twice: the line's own, one in a list of it (a message), or one in
// a list of that (a part of a content). What lies elsewhere is nobody's to read here.
class DoubleKeyFinder : public FrontProbe {
 public:
  bool start_object(std::size_t /*elements*/) override { return open(); }

  bool start_array(std::size_t /*elements*/) override { return open(); }

  bool end_object() override { return close(); }

  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const bool is_read = keys_.size() % 2 == 1 && keys_.size() <= 5;
    if (is_read && !keys_.back().insert(name).second) {
      found_ = name;
      return false;
    }
    return true;
  }

  const std::optional<std::string>& found() const { return found_; }

 private:
  bool open() {
    keys_.emplace_back();
    return true;
  }

  bool close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;  // of the lists and objects that are open
  std::optional<std::string> found_;
};

std::string find_double_key(std::string_view text) {
  DoubleKeyFinder finder;
  json::sax_parse(text.begin(), text.end(), &finder);
  const std::optional<std::string>& key = finder.found();
  return key ? format("found the key \"{}\" twice, expected it once", *key) : "";
}

// What a line of another format has at `byte`, from 1, where it is no JSON; empty: none is known.
std::string describe_foreign(std::string_view line, std::size_t byte) {
  const std::string_view rest = line.substr(std::min(byte == 0 ? 0 : byte - 1, line.size()));
  if (rest.starts_with('\x1e')) {
    return format(
        "byte {} of the line is a record separator (0x1E), expected an object: this is a "
        "JSON text sequence (RFC 7464), in which `tr -d '\\036'` leaves the objects",
        byte);
  }
  if (rest.starts_with("//") || rest.starts_with("/*") || rest.starts_with('#')) {
    return format("byte {} of the line begins a comment, expected JSON, which has none: remove it",
                  byte);
  }
  if (is_row(line)) {
    return "found no JSON but what may be a row of CSV, expected an object: write each row as one, "
           "as Python's json.dumps() does those of csv.DictReader";
  }
  const std::size_t before = line.find_last_not_of(kSpace, byte < 2 ? 0 : byte - 2);
  const bool is_place_of_value =
      byte < 2 || before == std::string_view::npos ||
      std::string_view("{[,:").find(line[before]) != std::string_view::npos;
  if (rest.starts_with('\'') && is_place_of_value) {
    return format(
        "byte {} of the line is a single quote, expected a double one: this is how Python "
        "prints a dict; json.dumps() writes it as JSON",
        byte);
  }
  const std::size_t front = front_of(line);
  const ValueEnd value =
      line.substr(front).starts_with('{') ? find_end(line.substr(front)) : ValueEnd{};
  if (value.at && front + *value.at < byte && !rest.empty() &&
      std::string_view("{[,").find(rest.front()) != std::string_view::npos) {
    return format(
        "byte {} of the line begins more after the end of its object, expected the end of "
        "the line: write an object a line, as `jq -c .` does",
        byte);
  }
  return "";
}

bool is_valid_front(std::string_view text) {
  const std::size_t broken_at = find_broken(text);
  return broken_at == 0 || broken_at > text.size();
}

}  // namespace

std::string with_marked_odd_numbers(std::string_view line) {
  std::string marked;
  std::size_t copied = 0;
  for_each_odd_number(line, [&](std::size_t begin, std::size_t end) {
    marked += line.substr(copied, begin - copied);
    marked += format("{{\"\\u{:04x}{}\":0}}", int{kOddMark}, line.substr(begin, end - begin));
    copied = end;
  });
  return copied == 0 ? "" : marked += line.substr(copied);
}

bool is_odd_number(const json& value) {
  return value.is_object() && value.size() == 1 && value.begin().key().starts_with(kOddMark);
}

std::string describe_broken(std::string_view line) {
  if (line.starts_with(kDefect)) {
    return std::string(line.substr(1));
  }
  if (const std::size_t zero = line.find('\0'); zero != std::string_view::npos) {
    return format(
        "byte {} of the line is zero, expected JSON: a file that was not written to its "
        "end has such bytes; write it again, or remove them (`tr -d '\\000'`)",
        zero + 1);
  }
  const std::size_t byte = find_broken(line);
  const std::size_t valid = valid_utf8_prefix(line);
  if (valid < line.size() && valid < byte) {
    // What is written in UTF-16 or UTF-32 ends with this byte where it is cut off.
    const std::string_view rest = line.substr(valid);
    if (rest == "\xff" || front_utf8(rest).status == Utf8Status::kIncomplete) {
      return "the line ends inside a character: is the file cut off?";
    }
    return format("byte {} of the line is no UTF-8, expected it throughout: is it Latin-1?",
                  valid + 1);
  }
  if (std::string foreign = describe_foreign(line, byte); !foreign.empty()) {
    return foreign;
  }
  std::size_t begin = byte == 0 ? 0 : byte - 1;
  std::size_t end = begin;
  while (end < line.size() && is_word_byte(line[end])) {
    ++end;
  }
  while (begin > 0 && begin <= line.size() && is_word_byte(line[begin - 1])) {
    --begin;
  }
  constexpr std::size_t kMost = 32;
  const bool is_value = begin < end && end - begin <= kMost && begin > 0 &&
                        std::string_view(":[, ").find(line[begin - 1]) != std::string_view::npos;
  return format("broken JSON at byte {} of the line{}",
                byte,
                is_value ? format(": found {}", line.substr(begin, end - begin)) : "");
}

bool has_zero(std::string_view line) {
  return line.find('\0') != std::string_view::npos;
}

bool is_row(std::string_view line) {
  std::string_view rest = line.substr(front_of(line));
  rest = rest.substr(0, rest.find_last_not_of(kSpace) + 1);
  if (rest.find_first_of("{[") == 0) {
    return false;
  }
  if (rest.starts_with('"')) {
    // The key of an object that is spread over lines.
    const std::size_t after = rest.find_first_not_of(kSpace, string_end(rest, 0));
    if (after != std::string_view::npos && rest[after] == ':') {
      return false;
    }
  }
  for (std::size_t at = 0; at < rest.size();) {
    if (rest[at] == '"') {
      at = string_end(rest, at);
    } else if (std::string_view(",;\t").find(rest[at]) != std::string_view::npos) {
      return true;
    } else {
      ++at;
    }
  }
  return false;
}

std::string parse_json_line(std::string_view line, json& value) {
  if (has_zero(line)) {
    value = json(json::value_t::discarded);
    return describe_broken(line);
  }
  value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_discarded()) {
    return find_double_key(line);
  }
  const std::string marked = with_marked_odd_numbers(line);
  value = marked.empty() ? value : json::parse(marked, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? describe_broken(line) : find_double_key(marked);
}

std::string as_of_value(std::string problem) {
  constexpr std::string_view kOfLine = " of the line";
  const std::size_t at = problem.find(kOfLine);
  const bool is_broken =
      problem.starts_with("broken JSON at byte ") || problem.starts_with("byte ");
  return is_broken && at != std::string::npos ? problem.replace(at, kOfLine.size(), " of the value")
                                              : problem;
}

std::string_view kind_of(const json& value) {
  if (is_odd_number(value)) {
    return std::string_view(value.begin().key()).substr(1);
  }
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "a list";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "a boolean";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
    case json::value_t::number_float:
      return "a number";
    case json::value_t::binary:
    case json::value_t::discarded:
      break;
  }
  return "no JSON";
}

std::string as_written(const json& value) {
  return value.is_structured() ? std::string(kind_of(value)) : value.dump();
}

bool spans_lines(std::string_view front, bool is_whole) {
  front.remove_prefix(front_of(front));
  const bool is_list = front.starts_with('[');
  if (!is_list && !front.starts_with('{')) {
    return false;
  }
  const std::size_t line_end = front.find_first_of("\r\n");
  const ValueEnd value = find_end(front);
  if (value.at && *value.at <= line_end) {
    // On one line: a list that is all of the file, or a value a line.
    return is_list && is_whole &&
           front.find_first_not_of(kSpace, *value.at) == std::string_view::npos;
  }
  const std::size_t next = front.find_first_not_of(kSpace, 1);
  if (is_list) {
    return next == std::string_view::npos || front[next] == '{' || front[next] == ']';
  }
  return !value.has_broken_string && line_end != std::string_view::npos &&
         is_valid_front(value.at ? front.substr(0, *value.at) : front);
}

void LineJoiner::push(std::string_view bytes, std::string& out) {
  if (at_front_ && bytes.starts_with(kByteOrderMark)) {
    bytes.remove_prefix(kByteOrderMark.size());
  }
  for (const char c : bytes) {
    put(c, out);
  }
}

void LineJoiner::put(char c, std::string& out) {
  const bool is_space = kSpace.find(c) != std::string_view::npos;
  const bool is_between = is_space || c == ',' || c == ']';
  if (!in_value_) {
    const bool opens_list = at_front_ && c == '[';
    at_front_ = at_front_ && is_space;
    is_list_ = is_list_ || opens_list;
    if (is_between || opens_list) {
      pass_between(c);
      return;
    }
    begin_value(out);
  }
  if (in_string_) {
    put_in_string(c, out);
  } else if (depth_ == 0 && is_between) {
    end_value(out);  // of what is no list and no object
    pass_between(c);
  } else {
    put_in_value(c, out);
  }
}

void LineJoiner::pass_between(char c) {
  has_comma_ = has_comma_ || c == ',';
  is_closed_ = is_closed_ || (is_list_ && c == ']');
}

void LineJoiner::begin_value(std::string& out) {
  if (is_closed_) {
    out += kDefect;
    out += "found more after the end of the list\n";
  } else if (is_list_ && !has_comma_) {
    out += kDefect;
    out += "found no comma between this value and the one before\n";
  }
  in_value_ = true;
  has_comma_ = false;
}

// A line that ends in a string is broken, and said to be when the value is read.
void LineJoiner::put_in_string(char c, std::string& out) {
  const bool ends_line = c == '\n' || c == '\r';
  in_string_ = (c != '"' || escaped_) && !ends_line;
  escaped_ = c == '\\' && !escaped_;
  out += ends_line ? '\t' : c;
}

void LineJoiner::put_in_value(char c, std::string& out) {
  const bool ends_line = c == '\n' || c == '\r';
  out += ends_line ? ' ' : c;
  in_string_ = c == '"';
  depth_ += c == '{' || c == '[' ? 1 : 0;
  depth_ -= (c == '}' || c == ']') && depth_ > 0 ? 1 : 0;
  if (depth_ == 0 && (c == '}' || c == ']')) {
    end_value(out);
  }
}

void LineJoiner::end_value(std::string& out) {
  out += '\n';
  in_value_ = false;
}

void LineJoiner::flush(std::string& out) {
  // A value that is cut off is broken itself.
  const bool is_whole = depth_ == 0 && !in_string_;
  if (in_value_) {
    end_value(out);
  }
  if (is_list_ && !is_closed_ && is_whole) {
    out += kDefect;
    out += "the list is not closed: is the file cut off?\n";
  }
  in_string_ = false;
  depth_ = 0;
}

}  // namespace tessera
