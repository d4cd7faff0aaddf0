#include "tessera/config/codec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/base/expand_path.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera::codec {
namespace {

constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

Codec<double> number(const std::string& expected, bool (*allowed)(double)) {
  auto read = [=](const ConfigValue& value) {
    const auto* integer = std::get_if<std::int64_t>(&value.data);
    const double x =
        integer != nullptr ? static_cast<double>(*integer) : require<double>(value, expected);
    if (!std::isfinite(x) || !allowed(x)) {
      refuse(value, expected);
    }
    return x;
  };
  return {.expected = expected, .read = read, .write = [](double x) { return ConfigValue{x}; }};
}

Codec<std::int64_t> integer(std::int64_t min, std::int64_t max, const std::string& expected) {
  auto read = [=](const ConfigValue& value) {
    const auto x = require<std::int64_t>(value, expected);
    if (x < min || x > max) {
      refuse(value, expected);
    }
    return x;
  };
  return {
      .expected = expected, .read = read, .write = [](std::int64_t x) { return ConfigValue{x}; }};
}

template <class T>
Codec<std::vector<T>> list_of(const Codec<T>& element, const std::string& expected) {
  auto read = [=, read = element.read](const ConfigValue& value) {
    std::vector<T> values;
    for (const ConfigValue& entry : require<ConfigValue::List>(value, expected)) {
      if constexpr (std::is_same_v<T, std::string>) {
        require<std::string>(entry, expected);
      }
      values.push_back(read(entry));
    }
    return values;
  };
  auto write = [write = element.write](const std::vector<T>& values) {
    ConfigValue::List list;
    for (const T& value : values) {
      list.push_back(write(value));
    }
    return ConfigValue{std::move(list)};
  };
  return {.expected = expected, .form = ValueForm::kList, .read = read, .write = write};
}

}  // namespace

void refuse(const ConfigValue& found, std::string_view expected) {
  fail(ErrorCode::kInvalidConfig, "found {}, expected {}", describe(found), expected);
}

Codec<bool> boolean() {
  return {.expected = "true or false",
          .read = [](const ConfigValue& value) { return require<bool>(value, "true or false"); },
          .write = [](bool flag) { return ConfigValue{flag}; }};
}

Codec<std::int64_t> at_least(std::int64_t min) {
  return integer(
      min, std::numeric_limits<std::int64_t>::max(), format("integer, at least {}", min));
}

Codec<std::int64_t> between(std::int64_t min, std::int64_t max) {
  return integer(min, max, format("integer from {} to {}", min, max));
}

Codec<std::int64_t> bytes() {
  const std::string expected = "bytes, such as 6000000000 or \"6 GB\", at least 0";
  const auto read = [=](const ConfigValue& value) {
    const auto* const number = std::get_if<std::int64_t>(&value.data);
    std::int64_t count = number != nullptr ? *number : -1;
    if (number == nullptr) {
      const auto& text = require<std::string>(value, expected);
      const char* const end = text.data() + text.size();
      const auto [rest, error] = std::from_chars(text.data(), end, count);
      if (error != std::errc{} || rest != end) {
        const double quantity = parse_quantity(text, "B").value_or(-1.0);
        count = quantity >= 0 && quantity < 0x1p62 ? static_cast<std::int64_t>(quantity) : -1;
      }
    }
    if (count < 0) {
      refuse(value, expected);
    }
    return count;
  };
  return {.expected = expected,
          .form = ValueForm::kText,
          .read = read,
          .write = [](std::int64_t count) { return ConfigValue{count}; }};
}

Codec<RecomputedLayers> recomputed_layers() {
  const std::string expected =
      "\"all\", a number of layers, at least 1, or two numbers of layers, as \"4-11\"";
  const auto read = [=](const ConfigValue& value) {
    const auto* const number = std::get_if<std::int64_t>(&value.data);
    const std::optional<RecomputedLayers> layers = parse_recomputed_layers(
        number != nullptr ? format("{}", *number) : require<std::string>(value, expected));
    if (!layers) {
      refuse(value, expected);
    }
    return *layers;
  };
  return {.expected = expected,
          .form = ValueForm::kText,
          .read = read,
          .write = [](const RecomputedLayers& layers) { return ConfigValue{to_string(layers)}; }};
}

Codec<std::int64_t> size() {
  return between(1, kMaxSize);
}

Codec<std::int64_t> size_or_zero() {
  return between(0, kMaxSize);
}

Codec<double> positive() {
  return number("number above 0", [](double x) { return x > 0; });
}

Codec<double> not_negative() {
  return number("number, at least 0", [](double x) { return x >= 0; });
}

Codec<double> ratio() {
  return number("number from 0 to 1", [](double x) { return x >= 0 && x <= 1; });
}

Codec<double> below_one() {
  return number("number from 0 to below 1", [](double x) { return x >= 0 && x < 1; });
}

Codec<std::vector<double>> positive_list() {
  return list_of(positive(), "list of numbers above 0");
}

Codec<std::vector<std::int64_t>> counts() {
  return list_of(size_or_zero(), "list of whole numbers, at least 0");
}

Codec<std::array<double, 2>> pair(const Codec<double>& element) {
  const std::string expected = format("list of two, each a {}", element.expected);
  auto read = [=, read = element.read](const ConfigValue& value) {
    const auto& list = require<ConfigValue::List>(value, expected);
    if (list.size() != 2) {
      refuse(value, expected);
    }
    return std::array{read(list[0]), read(list[1])};
  };
  return {.expected = expected, .read = read, .write = [](const std::array<double, 2>& numbers) {
            return ConfigValue{ConfigValue::List{ConfigValue{numbers[0]}, ConfigValue{numbers[1]}}};
          }};
}

Codec<std::string> text() {
  return {.expected = "string",
          .form = ValueForm::kText,
          .read = [](const ConfigValue& value) { return require<std::string>(value, "string"); },
          .write = [](const std::string& string) { return ConfigValue{string}; }};
}

Codec<std::vector<std::string>> text_list() {
  return list_of(text(), "list of strings");
}

Codec<std::string> path() {
  Codec<std::string> result = text();
  result.expected = "path";
  result.read = [](const ConfigValue& value) {
    return expand_path(require<std::string>(value, "path"));
  };
  result.write = [](const std::string& path) { return ConfigValue{unexpanded_path(path)}; };
  return result;
}

Codec<std::vector<std::string>> path_list() {
  return list_of(path(), "list of paths");
}

Codec<std::string> degree() {
  constexpr std::string_view kExpected = "integer, at least 1, or the name of a level";
  auto read = [=](const ConfigValue& value) {
    const auto* number = std::get_if<std::int64_t>(&value.data);
    if (number != nullptr && *number < 1) {
      refuse(value, kExpected);
    }
    return number != nullptr ? format("{}", *number) : require<std::string>(value, kExpected);
  };
  return {.expected = std::string(kExpected),
          .form = ValueForm::kText,
          .read = read,
          .write = [](const std::string& degree) { return ConfigValue{degree}; }};
}

Codec<std::string> word(const std::vector<std::string_view>& words) {
  std::string expected;
  for (const std::string_view word : words) {
    expected += format("{}\"{}\"", expected.empty() ? "" : " or ", word);
  }
  Codec<std::string> result = text();
  result.expected = expected;
  result.read = [=](const ConfigValue& value) {
    const auto& found = require<std::string>(value, expected);
    if (std::find(words.begin(), words.end(), found) == words.end()) {
      refuse(value, expected);
    }
    return found;
  };
  return result;
}

}  // namespace tessera::codec
