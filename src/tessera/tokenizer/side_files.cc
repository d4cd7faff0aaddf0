#include "tessera/tokenizer/side_files.h"

#include <algorithm>
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
#include "tessera/tokenizer/tokenizer.h"

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

std::optional<bool> flag_of(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() ? std::optional(found->get<bool>())
                                                      : std::nullopt;
}

// Whether added_tokens of a tokenizer.json has all of these tokens, told from its text in the form
// that all writers have: a vocabulary is long. False where that is not certain.
bool has_all(std::string_view text, const Json& wanted) {
  const std::size_t begin = text.find("\"added_tokens\"");
  const std::size_t end = text.find("\"normalizer\"", begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) {
    return false;
  }
  const std::string_view list = text.substr(begin, end - begin);
  return std::ranges::all_of(wanted, [&](const Json& token) {
    const std::string content = token["content"].dump();
    return list.find("\"content\": " + content) != std::string_view::npos ||
           list.find("\"content\":" + content) != std::string_view::npos;
  });
}

// Whether a tokenizer.json has what is needed to add tokens.
bool has_form(const Json& root) {
  const Json::json_pointer vocab("/model/vocab");
  const Json added = root.is_object() ? root.value("added_tokens", Json::array()) : Json();
  return added.is_array() && root.contains(vocab) && root[vocab].is_object() &&
         std::ranges::all_of(added, [](const Json& token) {
           return token.is_object() && token.contains("content") && token.contains("id") &&
                  token["id"].is_number_unsigned();
         });
}

// The id that a token gets which is not among the added ones.
std::uint64_t next_id(const Json& root, const std::string& content) {
  const Json& vocab = root["model"]["vocab"];
  if (const auto entry = vocab.find(content); entry != vocab.end()) {
    return entry->get<std::uint64_t>();
  }
  std::uint64_t next = vocab.size();
  for (const Json& token : root["added_tokens"]) {
    next = std::max(next, token["id"].get<std::uint64_t>() + 1);
  }
  return next;
}

bool has_at(const Tokenizer& tokenizer, std::uint64_t id, const std::string& content) {
  if (id >= static_cast<std::uint64_t>(tokenizer.vocab_size())) {
    return false;
  }
  const auto own = static_cast<std::int32_t>(id);
  return !std::ranges::binary_search(tokenizer.holes(), own) && tokenizer.spelling(own) == content;
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
  files.add_prefix_space = flag_of(config, "add_prefix_space");
  if (const auto decoder = config.find("added_tokens_decoder"); decoder != config.end()) {
    files.added_place = format("added_tokens_decoder of {}", config_path.string());
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
  files.added_place = added_path.string();
  return files;
}

std::string with_tokens_beside(std::string text, const SideFiles& beside) {
  if (beside.added.empty()) {
    return text;
  }
  Json wanted = parse_json(beside.added, {});
  if (has_all(text, wanted)) {
    return text;
  }
  Json root = parse_json(text, {.unique_keys = false});
  if (!has_form(root)) {
    return text;  // broken, as its reader says
  }
  Json& added = root["added_tokens"];
  std::sort(wanted.begin(), wanted.end(), [](const Json& first, const Json& second) {
    return first["id"] < second["id"];
  });
  const std::size_t before = added.size();
  for (Json& token : wanted) {
    const std::string content = token["content"].get<std::string>();
    if (std::ranges::any_of(added, [&](const Json& own) { return own["content"] == content; })) {
      continue;
    }
    const std::uint64_t id = next_id(root, content);
    TESSERA_REQUIRE(token["id"] == id,
                    ErrorCode::kInvalidData,
                    "{} gives \"{}\" the id {}; among the added tokens of tokenizer.json it is "
                    "missing, and transformers would give it {}: make the files agree",
                    beside.added_place,
                    content,
                    token["id"].dump(),
                    id);
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      token.emplace(flag, false);
    }
    added.push_back(std::move(token));
  }
  return added.size() == before ? text : root.dump();
}

std::string contradiction(const SideFiles& beside, const Tokenizer& tokenizer) {
  std::string first;
  std::int64_t count = 0;
  for (const Json& token : beside.added.empty() ? Json::array() : parse_json(beside.added, {})) {
    const auto content = token["content"].get<std::string>();
    if (has_at(tokenizer, token["id"].get<std::uint64_t>(), content)) {
      continue;
    }
    if (const auto found = tokenizer.find(content)) {
      first = count++ > 0 ? first
                          : format("{} gives \"{}\" the id {}, and the tokenizer {}",
                                   beside.added_place,
                                   content,
                                   token["id"].dump(),
                                   *found);
    }
  }
  return count == 0   ? ""
         : count == 1 ? format("{}: the tokenizer's counts", first)
                      : format("{} ({} more differ): the tokenizer's count", first, count - 1);
}

std::string format_added_tokens(std::string_view added) {
  Json ids = Json::object();
  for (const Json& token : parse_json(added, {})) {
    ids[token["content"].get<std::string>()] = token["id"];
  }
  return ids.dump(2) + "\n";
}

}  // namespace tessera
