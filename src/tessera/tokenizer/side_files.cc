#include "tessera/tokenizer/side_files.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/tokenizer/json_node.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A token is named by its text, or by an object that has it.
void add_name(const Json& value, std::set<std::string>& names) {
  if (value.is_string()) {
    names.insert(value.get<std::string>());
  } else if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    names.insert(value["content"].get<std::string>());
  }
}

std::set<std::string> special_names(const Json& config, const Json& special_map) {
  constexpr std::array kKeys = {"bos_token",
                                "eos_token",
                                "unk_token",
                                "sep_token",
                                "pad_token",
                                "cls_token",
                                "mask_token",
                                "additional_special_tokens"};
  std::set<std::string> names;
  for (const Json* file : {&config, &special_map}) {
    for (const char* key : kKeys) {
      const auto member = file->find(key);
      if (member == file->end()) {
        continue;
      }
      if (member->is_array()) {
        for (const Json& value : *member) {
          add_name(value, names);
        }
      } else {
        add_name(*member, names);
      }
    }
  }
  return names;
}

Json entry_of(std::uint64_t id, const std::string& content, bool special, bool normalized) {
  return {{"id", id}, {"content", content}, {"special", special}, {"normalized", normalized}};
}

// {"32000": {"content": "<|im_end|>", "special": true, ..}, ..}
Json read_decoder(const JsonNode& decoder) {
  decoder.expect(decoder.json().is_object(), "an object");
  Json added = Json::array();
  for (const auto& [key, value] : decoder.json().items()) {
    std::uint64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    TESSERA_REQUIRE(error == std::errc() && end == key.data() + key.size(),
                    ErrorCode::kInvalidData,
                    "{} is no id",
                    decoder.place_of(key));
    const JsonNode token = decoder.at(key);
    const bool special = token.boolean_or("special", false);
    Json entry = entry_of(
        id, token.at("content").string(), special, token.boolean_or("normalized", !special));
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      entry[flag] = token.boolean_or(flag, false);
    }
    added.push_back(std::move(entry));
  }
  return added;
}

std::string text_of(const Json& added) {
  return added.empty() ? "" : added.dump();
}

}  // namespace

SideFiles read_side_files(const fs::path& directory) {
  const fs::path config_path = directory / "tokenizer_config.json";
  const Json config = read_json_object(config_path);
  SideFiles files;
  if (const auto name = config.find("tokenizer_class"); name != config.end() && name->is_string()) {
    files.tokenizer_class = name->get<std::string>();
  }
  if (const auto decoder = config.find("added_tokens_decoder"); decoder != config.end()) {
    with_context(
        [&] { return format("in {}", config_path.string()); },
        [&] { files.added = text_of(read_decoder(JsonNode(*decoder, "/added_tokens_decoder"))); });
    return files;
  }
  const fs::path added_path = directory / "added_tokens.json";
  const Json tokens = read_json_object(added_path);
  const std::set<std::string> special =
      special_names(config, read_json_object(directory / "special_tokens_map.json"));
  Json added = Json::array();
  for (const auto& [content, id] : tokens.items()) {
    TESSERA_REQUIRE(id.is_number_unsigned(),
                    ErrorCode::kInvalidData,
                    "{} gives \"{}\" the id {}, expected a whole number from 0",
                    added_path.string(),
                    content,
                    id.dump());
    const bool is_special = special.contains(content);
    added.push_back(entry_of(id.get<std::uint64_t>(), content, is_special, !is_special));
  }
  files.added = text_of(added);
  return files;
}

std::string format_added_tokens(std::string_view added) {
  Json ids = Json::object();
  for (const Json& token : parse_json(added, {})) {
    ids[token["content"].get<std::string>()] = token["id"];
  }
  return ids.dump(2) + "\n";
}

}  // namespace tessera
