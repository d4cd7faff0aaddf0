#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tessera {

// What readers of JSON files of others share.
struct JsonOptions {
  std::string name = {};    // of the file; messages begin with it where it is not empty
  std::size_t offset = 0;   // of the text in its file, for messages
  bool unique_keys = true;  // refuse an object that has a key twice; else the last one counts
  // Where it is set: gets the offset in the file of each key of the outermost object.
  std::map<std::string, std::size_t>* key_offsets = nullptr;
};

// Errors: kInvalidData naming the byte of the file, from 0, where the text is no JSON, holds a zero
// byte or a number that no type holds, is nested deeper than 64 levels (what destroys and writes
// such values recurses), or has a key again.
nlohmann::json parse_json(std::string_view text, const JsonOptions& options);

}  // namespace tessera
