#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/config/run_config.h"
#include "tessera/config/schema.h"
#include "tessera/config/value.h"

// How the values of a key are read, checked, written and described: a part of each row of the
// schema (schema_rows.h).
namespace tessera::codec {

template <class T>
struct Codec {
  std::string expected;  // type and range in words
  ValueForm form = ValueForm::kScalar;
  std::function<T(const ConfigValue&)> read;  // throws kInvalidConfig "found .., expected .."
  std::function<ConfigValue(const T&)> write;
};

// An error whose message says where in the file it is, more exactly than where the key's value
// begins.
struct PlacedError : Error {
  using Error::Error;
};

// Throws kInvalidConfig "found .., expected ..".
[[noreturn]] void refuse(const ConfigValue& found, std::string_view expected);

// The type T that `value` holds, or refuse().
template <class T>
const T& require(const ConfigValue& value, std::string_view expected) {
  const T* held = std::get_if<T>(&value.data);
  if (held == nullptr) {
    refuse(value, expected);
  }
  return *held;
}

Codec<bool> boolean();
Codec<std::int64_t> at_least(std::int64_t min);
Codec<std::int64_t> between(std::int64_t min, std::int64_t max);

// Bytes as a whole number, or with a unit: "6 GB", "5.5 GiB".
Codec<std::int64_t> bytes();

// Counts and dims: the product of two fits in 64 bits.
Codec<std::int64_t> size();
Codec<std::int64_t> size_or_zero();

// Finite real numbers; an integer serves as one.
Codec<double> positive();
Codec<double> not_negative();
Codec<double> ratio();      // [0, 1]
Codec<double> below_one();  // [0, 1)

Codec<std::vector<double>> positive_list();
Codec<std::vector<std::int64_t>> counts();  // each a size_or_zero()
Codec<std::array<double, 2>> pair(const Codec<double>& element);
Codec<std::string> text();
Codec<std::vector<std::string>> text_list();

// Paths of files and folders, expanded as they are read (base/expand_path.h).
Codec<std::string> path();
Codec<std::vector<std::string>> path_list();

Codec<RecomputedLayers> recomputed_layers();

// A whole number or a name, held as text.
Codec<std::string> degree();
Codec<std::string> word(const std::vector<std::string_view>& words);

// One of an enumeration, by the name that `name_of` gives it.
template <class E>
Codec<E> choice(std::initializer_list<E> alternatives, std::string_view (*name_of)(E) = to_string) {
  std::vector<E> values(alternatives);
  std::vector<std::string_view> names;
  names.reserve(values.size());
  for (const E value : values) {
    names.push_back(name_of(value));
  }
  Codec<std::string> name = word(names);
  return {.expected = name.expected,
          .form = name.form,
          .read =
              [=](const ConfigValue& v) {
                const std::string found = name.read(v);
                std::size_t i = 0;
                while (names[i] != found) {
                  ++i;
                }
                return values[i];
              },
          .write = [=](const E& e) { return ConfigValue{std::string(name_of(e))}; }};
}

}  // namespace tessera::codec
