#include "tessera/base/toml.h"

#include <sstream>

#include "tessera/base/error.h"

namespace tessera {

std::string toml_place(std::string_view source, const toml::source_region& region) {
  return format("{}:{}:{}", source, region.begin.line, region.begin.column);
}

std::string toml_type(const toml::node& node) {
  std::ostringstream name;
  name << node.type();
  return name.str();
}

toml::table parse_toml(std::string_view text, std::string_view source) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::kInvalidConfig,
         "{}: {}",
         toml_place(source, error.source()),
         error.description());
  }
}

std::string toml_string(std::string_view text) {
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

std::string toml_number(double number) {
  std::string text = format("{}", number);
  const bool is_float = text.find_first_of(".eni") != std::string::npos;
  return is_float ? text : text + ".0";
}

}  // namespace tessera
