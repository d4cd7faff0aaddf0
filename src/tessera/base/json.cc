#include "tessera/base/json.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/text.h"
#include "tessera/base/text_encoding.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDepth = 64;

// Reads a text and counts what was read: the library tells no place but that of an error.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  std::string_view::const_iterator at = {};
  std::size_t* count = nullptr;

  reference operator*() const { return *at; }

  CountingIterator& operator++() {
    ++at;
    ++*count;
    return *this;
  }

  CountingIterator operator++(int) {
    const CountingIterator before = *this;
    ++*this;
    return before;
  }

  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at == b.at;
  }
};

// A JSON text in which the numbers that Python's json alone knows stand in quotes.
struct QuotedText {
  std::string text;
  std::vector<std::size_t> quotes;  // where in `text` one was added, rising

  // Where a byte of `text` was before.
  std::size_t original(std::size_t at) const {
    const auto before = std::ranges::lower_bound(quotes, at) - quotes.begin();
    return at - static_cast<std::size_t>(before);
  }
};

// Whether what stands before `rest` would be a key: that is a text.
bool is_key(std::string_view rest) {
  const std::size_t next = rest.find_first_not_of(" \t\r\n");
  return next != std::string_view::npos && rest[next] == ':';
}

QuotedText quote_python_numbers(std::string_view text) {
  QuotedText quoted;
  bool in_string = false;
  const auto add_quote = [&] {
    quoted.quotes.push_back(quoted.text.size());
    quoted.text += '"';
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    std::size_t length =
        in_string && rest.starts_with('\\') ? std::min<std::size_t>(2, rest.size()) : 1;
    bool is_number = false;
    for (const std::string_view number : {"NaN", "Infinity", "-Infinity"}) {
      if (!in_string && rest.starts_with(number) && !is_key(rest.substr(number.size()))) {
        length = number.size();
        is_number = true;
      }
    }
    in_string = in_string != rest.starts_with('"');
    if (is_number) {
      add_quote();
    }
    quoted.text += rest.substr(0, length);
    if (is_number) {
      add_quote();
    }
    i += length;
  }
  return quoted;
}

class Parser {
 public:
  Parser(std::string_view text, const JsonOptions& options)
      : quoted_(options.python_numbers ? quote_python_numbers(text) : QuotedText()),
        text_(options.python_numbers ? quoted_.text : text),
        options_(options) {}

  ~Parser() = default;
  Parser(const Parser&) = delete;
  Parser(Parser&&) = delete;
  Parser& operator=(const Parser&) = delete;
  Parser& operator=(Parser&&) = delete;

  Json parse() {
    require_not_utf16(text_, ErrorCode::kInvalidData, options_.name);
    require_no_zero();
    require_shallow();
    // A callback makes the library slower: only where it is asked for.
    Json::parser_callback_t watch;
    if (options_.unique_keys) {
      watch = [this](int /*depth*/, Json::parse_event_t event, const Json& parsed) {
        watch_keys(event, parsed);
        return true;
      };
    }
    try {
      return Json::parse(CountingIterator{.at = text_.begin(), .count = &num_read_},
                         CountingIterator{.at = text_.end(), .count = &num_read_},
                         watch);
    } catch (const Json::parse_error& error) {
      refuse(error.byte - (error.byte > 0 ? 1 : 0), error.what());
    } catch (const Json::exception& error) {
      // A number, behind which one more byte was read unless the text ends there.
      const bool is_end = text_[num_read_ - 1] >= '0' && text_[num_read_ - 1] <= '9';
      refuse(num_read_ - (is_end ? 1 : 2), error.what());
    }
  }

 private:
  // The library takes a zero byte for the end of the text.
  void require_no_zero() const {
    const std::size_t zero = text_.find('\0');
    if (zero != std::string_view::npos) {
      refuse(zero, "found a zero byte");
    }
  }

  // The library itself does not recurse, but what destroys and writes its values does.
  void require_shallow() const {
    std::size_t depth = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < text_.size(); ++i) {
      const char c = text_[i];
      if (in_string) {
        i += c == '\\' ? 1 : 0;
        in_string = c != '"';
        continue;
      }
      in_string = c == '"';
      depth += c == '{' || c == '[' ? 1 : 0;
      depth -= (c == '}' || c == ']') && depth > 0 ? 1 : 0;
      if (depth > kMaxDepth) {
        refuse(i, format("nested deeper than {} levels", kMaxDepth));
      }
    }
  }

  void watch_keys(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      TESSERA_REQUIRE(keys_.back().insert(key).second,
                      ErrorCode::kInvalidData,
                      "{}byte {}: key '{}' appears twice",
                      prefix(),
                      key_offset(),
                      key);
    }
  }

  // Of the key that was just read: its quotes are the last two that no backslash escapes.
  std::size_t key_offset() const {
    std::size_t at = num_read_ - 1;
    std::size_t backslashes = 1;
    while (at > 0 && backslashes % 2 == 1) {
      at = text_.rfind('"', at - 1);
      backslashes = 0;
      while (backslashes < at && text_[at - backslashes - 1] == '\\') {
        ++backslashes;
      }
    }
    return options_.offset + quoted_.original(at);
  }

  std::string prefix() const { return options_.name.empty() ? "" : options_.name + ": "; }

  // The library's own texts begin with its names of them:
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..".
  static std::string_view plain(std::string_view reason) {
    constexpr std::string_view kParseError = "parse error at ";
    if (!reason.starts_with("[json.exception.")) {
      return reason;
    }
    reason.remove_prefix(std::min(reason.find("] ") + 2, reason.size()));
    reason.remove_prefix(reason.starts_with(kParseError) ? kParseError.size() : 0);
    return reason;
  }

  [[noreturn]] void refuse(std::size_t at, std::string_view reason) const {
    fail(ErrorCode::kInvalidData,
         "{}not JSON at byte {}: {}",
         prefix(),
         options_.offset + quoted_.original(at),
         plain(reason));
  }

  QuotedText quoted_;  // empty where no quotes are added
  std::string_view text_;
  const JsonOptions& options_;
  std::size_t num_read_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

// Walks over a text that is known to be JSON.
class Walker {
 public:
  explicit Walker(std::string_view text) : text_(text) { skip_space(); }

  std::size_t at() const { return at_; }

  bool at_object() const { return next() == '{'; }

  bool at_array() const { return next() == '['; }

  // Calls member(key, place) with each member of the object that is next, at its value, which it
  // must skip or walk through.
  template <class Member>
  void for_each_member(const Member& member) {
    for_each_item('}', [&] {
      const std::size_t place = at_;
      skip_string();
      const std::string key =
          Json::parse(text_.substr(place, at_ - place)).template get<std::string>();
      skip_space();
      ++at_;  // the colon
      skip_space();
      member(key, place);
    });
  }

  // Calls item() at each item of the object or array that is next.
  template <class Item>
  void for_each_item(char end, const Item& item) {
    ++at_;
    skip_space();
    while (at_ < text_.size() && next() != end) {
      item();
      skip_space();
      at_ += next() == ',' ? 1 : 0;
      skip_space();
    }
    ++at_;
  }

  void skip_value() {
    std::size_t depth = 0;
    do {
      const char c = next();
      if (c == '"') {
        skip_string();
        continue;
      }
      const bool is_scalar = depth == 0 && c != '{' && c != '[';
      if (is_scalar) {
        at_ = std::min(text_.find_first_of(",]} \t\r\n", at_), text_.size());
        return;
      }
      depth += c == '{' || c == '[' ? 1 : 0;
      depth -= c == '}' || c == ']' ? 1 : 0;
      ++at_;
    } while (depth > 0 && at_ < text_.size());
  }

  void go_to(std::size_t at) { at_ = at; }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      at_ += text_[at_] == '\\' ? 1 : 0;
    }
    ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// Goes to the value of a member or element of the value that is next; its place.
std::optional<std::size_t> go_to_part(Walker& walker, const std::string& part) {
  std::optional<std::size_t> place;
  std::size_t value = 0;
  if (walker.at_object()) {
    walker.for_each_member([&](const std::string& key, std::size_t at) {
      if (key == part) {  // the last one counts
        place = at;
        value = walker.at();
      }
      walker.skip_value();
    });
  } else if (walker.at_array()) {
    std::size_t index = 0;
    walker.for_each_item(']', [&] {
      if (part == format("{}", index++)) {
        place = value = walker.at();
      }
      walker.skip_value();
    });
  }
  walker.go_to(value);
  return place;
}

}  // namespace

Json parse_json(std::string_view text, const JsonOptions& options) {
  return Parser(text, options).parse();
}

nlohmann::json read_json_object(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Json::object();
  }
  Json json = parse_json(read_file(path), {.name = path.string(), .unique_keys = false});
  TESSERA_REQUIRE(json.is_object(),
                  ErrorCode::kInvalidData,
                  "{} holds {}, expected an object",
                  path.string(),
                  json.type_name());
  return json;
}

std::optional<std::int64_t> whole_number(double value) {
  constexpr double kBound = 9223372036854775808.0;  // 2^63
  const bool is_whole = value >= -kBound && value < kBound && value == std::trunc(value);
  return is_whole ? std::optional(static_cast<std::int64_t>(value)) : std::nullopt;
}

std::optional<std::int64_t> whole_number(const Json& value) {
  if (value.is_number_float()) {
    return whole_number(value.get<double>());
  }
  constexpr auto kMost = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost);
  return fits ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

std::optional<std::size_t> find_json(std::string_view text, std::string_view pointer) {
  Walker walker(text);
  std::optional<std::size_t> place = walker.at();
  while (place && pointer.starts_with('/')) {
    const std::size_t end = std::min(pointer.find('/', 1), pointer.size());
    const std::string part(pointer.substr(1, end - 1));
    place = go_to_part(walker, replace_all(replace_all(part, "~1", "/"), "~0", "~"));
    pointer.remove_prefix(end);
  }
  return place;
}

std::string json_pointer_part(std::string_view key) {
  return replace_all(replace_all(key, "~", "~0"), "/", "~1");
}

}  // namespace tessera
