#include "tessera/config/value.h"

#include "tessera/base/format.h"

namespace tessera {
namespace {

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += format("\\{}", c);
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += format("\\u{:04X}", static_cast<unsigned>(byte));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// Shortest text that reads back to the same double, marked as a float for TOML.
std::string print_number(double number) {
  std::string text = format("{}", number);
  const bool is_float = text.find_first_of(".eni") != std::string::npos;
  return is_float ? text : text + ".0";
}

std::string print_list(const ConfigValue::List& list) {
  std::string text;
  for (const ConfigValue& element : list) {
    text += text.empty() ? "" : ", ";
    text += to_toml(element);
  }
  return format("[{}]", text);
}

struct Printer {
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }

  std::string operator()(std::int64_t integer) const { return format("{}", integer); }

  std::string operator()(double number) const { return print_number(number); }

  std::string operator()(const std::string& text) const { return quote(text); }

  std::string operator()(const ConfigValue::List& list) const { return print_list(list); }
};

struct TypeName {
  std::string_view operator()(bool) const { return "boolean"; }

  std::string_view operator()(std::int64_t) const { return "integer"; }

  std::string_view operator()(double) const { return "number"; }

  std::string_view operator()(const std::string&) const { return "string"; }

  std::string_view operator()(const ConfigValue::List&) const { return "list"; }
};

}  // namespace

std::string to_toml(const ConfigValue& value) {
  return std::visit(Printer{}, value.data);
}

std::string describe(const ConfigValue& value) {
  return format("{} {}", std::visit(TypeName{}, value.data), to_toml(value));
}

}  // namespace tessera
