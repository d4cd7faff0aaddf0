#include "tessera/train/companions.h"

#include <algorithm>
#include <cstdint>
#include <system_error>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/train/chat_template.h"
#include "tessera/train/hugging_face.h"
#include "tessera/train/resume.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFolder = "hugging_face";
constexpr const char* kConfig = "config.json";
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kSpecialTokens = "special_tokens_map.json";
constexpr const char* kChatTemplate = "chat_template.jinja";

// A file of this kind has some KiB.
constexpr std::uintmax_t kMostBytes = std::uintmax_t{16} << 20U;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) <= kMostBytes && !error;
}

// Beside the checkpoint's own files, or its run's.
std::optional<fs::path> find_kept(const fs::path& checkpoint) {
  std::error_code error;
  const fs::path place = fs::canonical(checkpoint, error);
  for (const fs::path& above : {place, place.parent_path().parent_path()}) {
    std::error_code absent;
    if (!error && fs::is_directory(above / kFolder, absent)) {
      return above / kFolder;
    }
  }
  return std::nullopt;
}

// What parse_json() takes, with its keys in their order.
Json parse(const std::string& text, const fs::path& path) {
  parse_json(text, {.name = path.string()});
  return Json::parse(text);
}

std::string to_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

void keep_companions(const fs::path& source, const fs::path& directory) {
  const fs::path folder = directory / kFolder;
  for (const char* const name :
       {kConfig, kGenerationConfig, kTokenizerConfig, kSpecialTokens, kChatTemplate}) {
    if (!is_there(source / name)) {
      continue;
    }
    std::error_code error;
    fs::create_directories(folder, error);
    TESSERA_REQUIRE(
        !error, ErrorCode::kDeviceError, "cannot create {}: {}", folder.string(), error.message());
    write_file_atomic(folder / name, read_file(source / name));
  }
}

void keep_companions(const RunConfig& config,
                     const fs::path& run_dir,
                     const std::string& tokenizer_checksum) {
  std::error_code error;
  if (config.model.weights.empty() || fs::exists(run_dir / kFolder, error)) {
    return;
  }
  const std::optional<fs::path> theirs = find_tokenizer(config.model.weights);
  if (theirs && tessera::tokenizer_checksum(*theirs) == tokenizer_checksum) {
    keep_companions(config.model.weights, run_dir);
  }
}

ExportCompanions::ExportCompanions(const fs::path& checkpoint,
                                   const RunConfig& config,
                                   const std::optional<Tokenizer>& tokenizer,
                                   HuggingFaceFacts& facts)
    : kept_(find_kept(checkpoint)), tokenizer_(tokenizer), facts_(facts) {
  if (kept_ && is_there(*kept_ / kConfig)) {
    const HuggingFaceModel theirs = read_hugging_face_model(*kept_);
    facts.sequence_length = std::max(facts.sequence_length, theirs.facts.sequence_length);
    if (!theirs.facts.bos.empty()) {
      facts.bos = theirs.facts.bos;
    }
    if (!theirs.facts.eos.empty()) {
      facts.eos = theirs.facts.eos;
    }
  }
  if (tokenizer && config.data.format == DataFormat::kChat) {
    const ChatTemplate chat(*tokenizer, config.data.chat_template);
    chat_template_ = jinja_of(chat.name());
    if (std::ranges::find(facts.eos, chat.end_of_turn()) == facts.eos.end()) {
      facts.eos.push_back(chat.end_of_turn());
    }
  }
}

void ExportCompanions::write(const fs::path& directory) const {
  if (tokenizer_) {
    write_file_atomic(directory / kTokenizerConfig, tokenizer_config());
  }
  if (!kept_) {
    return;
  }
  for (const char* const name : {kGenerationConfig, kSpecialTokens, kChatTemplate}) {
    if (is_there(*kept_ / name)) {
      const std::string text = read_file(*kept_ / name);
      write_file_atomic(directory / name,
                        name == kGenerationConfig ? generation_config(text) : text);
    }
  }
}

// As it came, but for a template that a run of conversations gives to a model without one.
std::string ExportCompanions::tokenizer_config() const {
  const bool is_kept = kept_ && is_there(*kept_ / kTokenizerConfig);
  std::string text =
      is_kept ? read_file(*kept_ / kTokenizerConfig) : hugging_face_tokenizer_config(*tokenizer_);
  if (chat_template_.empty() || (kept_ && is_there(*kept_ / kChatTemplate))) {
    return text;
  }
  Json json = parse(text, is_kept ? *kept_ / kTokenizerConfig : fs::path(kTokenizerConfig));
  if (!json.is_object() || json.contains("chat_template")) {
    return text;
  }
  json["chat_template"] = chat_template_;
  return to_text(json);
}

// As it came, but for a token that ends an answer.
std::string ExportCompanions::generation_config(const std::string& text) const {
  if (chat_template_.empty()) {
    return text;
  }
  Json json = parse(text, *kept_ / kGenerationConfig);
  if (!json.is_object()) {
    return text;
  }
  json["eos_token_id"] = facts_.eos;
  return to_text(json);
}

}  // namespace tessera
