#include "tessera/config/value.h"

#include "tessera/base/format.h"
#include "tessera/base/toml.h"

namespace tessera {
namespace {

std::string print_list(const ConfigValue::List& list) {
  std::string text;
  for (const ConfigValue& element : list) {
    text += text.empty() ? "" : ", ";
    text += to_toml(element);
  }
  return format("[{}]", text);
}

std::string print_table(const ConfigValue::Table& table) {
  std::string text;
  for (const ConfigEntry& entry : table) {
    text += format("{}{} = {}", text.empty() ? "" : ", ", entry.key, to_toml(entry.value));
  }
  return format("{{{}}}", text);
}

struct Printer {
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }

  std::string operator()(std::int64_t integer) const { return format("{}", integer); }

  std::string operator()(double number) const { return toml_number(number); }

  std::string operator()(const std::string& text) const { return toml_string(text); }

  std::string operator()(const ConfigValue::List& list) const { return print_list(list); }

  std::string operator()(const ConfigValue::Table& table) const { return print_table(table); }
};

struct TypeName {
  std::string_view operator()(bool) const { return "boolean"; }

  std::string_view operator()(std::int64_t) const { return "integer"; }

  std::string_view operator()(double) const { return "number"; }

  std::string_view operator()(const std::string&) const { return "string"; }

  std::string_view operator()(const ConfigValue::List&) const { return "list"; }

  std::string_view operator()(const ConfigValue::Table&) const { return "table"; }
};

}  // namespace

std::string to_toml(const ConfigValue& value) {
  return std::visit(Printer{}, value.data);
}

std::string describe(const ConfigValue& value) {
  return format("{} {}", std::visit(TypeName{}, value.data), to_toml(value));
}

}  // namespace tessera
