#pragma once

#include <string>
#include <string_view>

#include <toml++/toml.h>

namespace tessera {

// What every reader and writer of TOML shares: where things stand and what they are, in messages,
// and the text of values. The one header that names the TOML library.

// "run.toml:3:7".
std::string toml_place(std::string_view source, const toml::source_region& region);

// "integer", "string", "array", ...
std::string toml_type(const toml::node& node);

// Errors: kInvalidConfig with the place, where `text` is not TOML. `source` names it.
toml::table parse_toml(std::string_view text, std::string_view source);

// `text` as a TOML string.
std::string toml_string(std::string_view text);

// The shortest TOML float that reads back to the same double.
std::string toml_number(double number);

}  // namespace tessera
