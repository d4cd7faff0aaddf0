#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/config/codec.h"
#include "tessera/config/run_config.h"
#include "tessera/config/schema.h"
#include "tessera/config/value.h"

// What the tables of the schema are made of: rows of keys, lists of tables, and sections.
namespace tessera::schema_rows {

using codec::Codec;

// A key of a section S that is not tied to the whole config yet.
template <class S>
struct Row {
  ConfigKey key;
  std::function<void(S&, const ConfigValue&)> set;
  std::function<std::optional<ConfigValue>(const S&)> get;
  std::function<void(S&)> leave_out = nullptr;  // null: it always has a value
};

template <class S, class T>
Row<S> row(std::string_view name, T S::* member, const Codec<T>& codec, std::string_view doc) {
  return {.key = {.name = name, .expected = codec.expected, .doc = doc, .form = codec.form},
          .set = [=](S& section, const ConfigValue& value) { section.*member = codec.read(value); },
          .get = [=](const S& section) { return codec.write(section.*member); }};
}

// A value that may be left out.
template <class S, class T>
Row<S> row(std::string_view name,
           std::optional<T> S::* member,
           const Codec<T>& codec,
           std::string_view doc) {
  return {.key = {.name = name, .expected = codec.expected, .doc = doc, .form = codec.form},
          .set = [=](S& section, const ConfigValue& value) { section.*member = codec.read(value); },
          .get = [=](const S& section) -> std::optional<ConfigValue> {
            const std::optional<T>& held = section.*member;
            return held ? std::optional(codec.write(*held)) : std::nullopt;
          },
          .leave_out = [=](S& section) { (section.*member).reset(); }};
}

// The error of a table's entry: with its place in the file, where there is one.
[[noreturn]] inline void refuse_entry(const std::string& place, const std::string& message) {
  if (place.empty()) {
    fail(ErrorCode::kInvalidConfig, "{}", message);
  }
  throw codec::PlacedError(ErrorCode::kInvalidConfig, format("{}: {}", place, message));
}

// `name` is the whole name of the list, for messages: "data.sources".
template <class S>
S read_table(const ConfigValue& value,
             std::string_view name,
             const std::vector<Row<S>>& rows,
             std::string_view expected) {
  S result;
  for (const ConfigEntry& entry : codec::require<ConfigValue::Table>(value, expected)) {
    const auto row = std::ranges::find(rows, entry.key, [](const Row<S>& r) { return r.key.name; });
    if (row == rows.end()) {
      std::vector<std::string> names;
      for (const Row<S>& known : rows) {
        names.emplace_back(known.key.name);
      }
      refuse_entry(
          entry.key_place,
          format("unknown key \"{}.{}\"{}", name, entry.key, did_you_mean(entry.key, names)));
    }
    try {
      row->set(result, entry.value);
    } catch (const Error& error) {
      refuse_entry(entry.value_place, format("{}.{}: {}", name, entry.key, error.message()));
    }
  }
  return result;
}

// A list of tables, each an S.
template <class S>
Codec<std::vector<S>> tables(std::string_view name, const std::vector<Row<S>>& rows) {
  constexpr std::string_view kExpected = "list of tables";
  auto read = [=](const ConfigValue& value) {
    std::vector<S> result;
    for (const ConfigValue& element : codec::require<ConfigValue::List>(value, kExpected)) {
      result.push_back(read_table(element, name, rows, kExpected));
    }
    return result;
  };
  auto write = [=](const std::vector<S>& elements) {
    ConfigValue::List list;
    for (const S& element : elements) {
      ConfigValue::Table table;
      for (const Row<S>& row : rows) {
        if (std::optional<ConfigValue> value = row.get(element)) {
          table.push_back({.key = std::string(row.key.name), .value = std::move(*value)});
        }
      }
      list.push_back({std::move(table)});
    }
    return ConfigValue{std::move(list)};
  };
  return {
      .expected = std::string(kExpected), .form = ValueForm::kList, .read = read, .write = write};
}

template <class S, class E>
Row<S> table_row(std::string_view name,
                 std::vector<E> S::* member,
                 std::string_view full_name,
                 const std::vector<Row<E>>& rows,
                 std::string_view doc) {
  Row<S> result = row(name, member, tables(full_name, rows), doc);
  for (const Row<E>& column : rows) {
    ConfigKey key = column.key;
    key.get = [get = column.get](const RunConfig&) { return get(E{}); };
    result.key.columns.push_back(std::move(key));
  }
  return result;
}

template <class S>
ConfigSection section(std::string_view name,
                      S RunConfig::* member,
                      std::string_view doc,
                      const std::vector<Row<S>>& rows) {
  ConfigSection result{.name = name, .doc = doc, .keys = {}};
  for (const Row<S>& row : rows) {
    ConfigKey key = row.key;
    key.set = [=, set = row.set](RunConfig& config, const ConfigValue& v) {
      set(config.*member, v);
    };
    key.get = [=, get = row.get](const RunConfig& config) { return get(config.*member); };
    if (row.leave_out) {
      key.leave_out = [=, leave_out = row.leave_out](RunConfig& config) {
        leave_out(config.*member);
      };
    }
    result.keys.push_back(std::move(key));
  }
  return result;
}

}  // namespace tessera::schema_rows
