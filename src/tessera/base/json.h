#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tessera {

// What readers of JSON files of others share.
struct JsonOptions {
  std::string name = {};    // of the file; messages begin with it where it is not empty
  std::size_t offset = 0;   // of the text in its file, for messages
  bool unique_keys = true;  // refuse an object that has a key twice; else the last one counts
  // Take NaN, Infinity and -Infinity, which Python's json writes and reads, as texts of these
  // names.
  bool python_numbers = false;
};

// Errors: kInvalidData naming the byte of the file, from 0, where the text is no JSON, holds a zero
// byte or a number that no type holds, is nested deeper than 64 levels (what destroys and writes
// such values recurses), or has a key again.
nlohmann::json parse_json(std::string_view text, const JsonOptions& options);

// The object that a file holds, whose keys may be there twice; an empty one where there is no file.
// Errors: as parse_json() and read_file(); kInvalidData where it holds something else.
nlohmann::json read_json_object(const std::filesystem::path& path);

// The whole number that a value is, written as 4096 or, as programs that computed it write it, as
// 4096.0; nothing where it is none, or 64 bits do not hold it.
std::optional<std::int64_t> whole_number(double value);
std::optional<std::int64_t> whole_number(const nlohmann::json& value);

// Where a text that parse_json() takes has what a JSON pointer (RFC 6901: "/model/vocab/a") names:
// the offset of a member's key or of an element's first byte. Nothing where it has none. For
// messages: it reads the text from its front.
std::optional<std::size_t> find_json(std::string_view text, std::string_view pointer);

// A key as a part of a JSON pointer, without the '/' in front.
std::string json_pointer_part(std::string_view key);

}  // namespace tessera
