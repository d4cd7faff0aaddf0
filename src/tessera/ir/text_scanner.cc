#include "tessera/ir/text_scanner.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "tessera/base/error.h"

namespace tessera {
namespace {

bool is_word_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '.' ||
         letter == '+' || letter == '-';
}

}  // namespace

void TextScanner::skip_space() {
  while (position_ < text_.size()) {
    if (text_[position_] == ';') {
      position_ = std::min(text_.find('\n', position_), text_.size());
    } else if (std::isspace(static_cast<unsigned char>(text_[position_])) != 0) {
      ++position_;
    } else {
      return;
    }
  }
}

bool TextScanner::at_end() {
  skip_space();
  return position_ == text_.size();
}

bool TextScanner::comes(std::string_view text) {
  skip_space();
  return text_.substr(position_).starts_with(text);
}

bool TextScanner::accept(std::string_view token) {
  if (!comes(token)) {
    return false;
  }
  const std::size_t after = position_ + token.size();
  const bool is_word = is_word_letter(token.back());
  if (is_word && after < text_.size() && is_word_letter(text_[after])) {
    return false;
  }
  position_ = after;
  return true;
}

void TextScanner::expect(std::string_view token) {
  if (!accept(token)) {
    fail_expected(format("'{}'", token));
  }
}

void TextScanner::expect_prefix(std::string_view token) {
  skip_space();
  if (!text_.substr(position_).starts_with(token)) {
    fail_expected(format("'{}'", token));
  }
  position_ += token.size();
}

std::string TextScanner::word() {
  skip_space();
  const std::size_t start = position_;
  while (position_ < text_.size() && is_word_letter(text_[position_])) {
    ++position_;
  }
  if (position_ == start || std::isdigit(static_cast<unsigned char>(text_[start])) != 0) {
    position_ = start;
    fail_expected("a name");
  }
  return std::string(text_.substr(start, position_ - start));
}

std::int64_t TextScanner::integer() {
  skip_space();
  std::int64_t result = 0;
  const char* begin = text_.data() + position_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), result);
  if (error != std::errc{}) {
    fail_expected("an integer");
  }
  position_ += static_cast<std::size_t>(end - begin);
  return result;
}

std::int32_t TextScanner::index() {
  const std::size_t start = position_;
  const std::int64_t value = integer();
  if (value != static_cast<std::int32_t>(value)) {
    position_ = start;
    fail_expected("an integer of 32 bits");
  }
  return static_cast<std::int32_t>(value);
}

double TextScanner::number() {
  skip_space();
  double result = 0;
  const char* begin = text_.data() + position_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), result);
  if (error != std::errc{}) {
    fail_expected("a number");
  }
  position_ += static_cast<std::size_t>(end - begin);
  return result;
}

std::string TextScanner::quoted() {
  expect("\"");
  std::string result;
  while (position_ < text_.size() && text_[position_] != '"') {
    char letter = text_[position_++];
    if (letter == '\\' && position_ < text_.size()) {
      letter = text_[position_++];
      letter = letter == 'n' ? '\n' : letter;
    }
    result += letter;
  }
  if (position_ == text_.size()) {
    fail_expected("a closing '\"'");
  }
  ++position_;
  return result;
}

std::string TextScanner::attribute() {
  skip_space();
  if (text_.substr(position_).starts_with('"')) {
    return quote(quoted());
  }
  const std::size_t end = std::min(text_.find_first_of(",} \n", position_), text_.size());
  std::string raw(text_.substr(position_, end - position_));
  if (raw.empty()) {
    fail_expected("a value");
  }
  position_ = end;
  return raw;
}

ValueId TextScanner::value() {
  expect("%");
  return {index()};
}

TensorType TextScanner::tensor_type() {
  TensorType type;
  const std::string text = word();
  const auto dtype = parse_dtype(text);
  if (!dtype) {
    position_ -= text.size();
    fail_expected("a dtype");
  }
  type.dtype = *dtype;
  expect("[");
  while (!accept("]")) {
    if (!type.dims.empty()) {
      expect(",");
    }
    Dim dim;
    dim.name = word();
    expect("=");
    dim.bound = integer();
    if (accept(":")) {
      dim.count = value();
    }
    type.dims.push_back(std::move(dim));
  }
  return type;
}

void TextScanner::end() {
  if (!at_end()) {
    fail_expected("the end");
  }
}

void TextScanner::fail_expected(std::string_view expected) {
  skip_space();
  const std::string_view before = text_.substr(0, position_);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start =
      before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  const std::string_view rest = text_.substr(position_);
  const std::string_view found = rest.substr(0, std::min<std::size_t>(rest.find('\n'), 24));
  fail(ErrorCode::kInvalidArgument,
       "line {}, column {}: found {}, expected {}",
       line,
       position_ - line_start + 1,
       rest.empty() ? "the end" : format("'{}'", found),
       expected);
}

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '\n') {
      result += "\\n";
      continue;
    }
    if (letter == '"' || letter == '\\') {
      result += '\\';
    }
    result += letter;
  }
  return result + '"';
}

}  // namespace tessera
