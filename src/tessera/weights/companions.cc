#include "tessera/weights/companions.h"

#include <algorithm>
#include <cstdint>
#include <system_error>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json.h"
#include "tessera/base/repository.h"
#include "tessera/base/utf8.h"
#include "tessera/dataset/chat_template.h"
#include "tessera/hugging_face/weights.h"
#include "tessera/resolve/stored_tokenizer.h"
#include "tessera/resolve/weights_defaults.h"
#include "tessera/resolve/weights_section.h"
#include "tessera/tokenizer/tokenizer_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFolder = "hugging_face";
constexpr const char* kConfig = "config.json";
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kSpecialTokens = "special_tokens_map.json";
constexpr const char* kChatTemplate = "chat_template.jinja";

// A file of this kind has some KiB.
constexpr std::uintmax_t kMostBytes = std::uintmax_t{16} << 20U;

// The text of a file of `directory`; nothing where there is none. It will be copied, and may come
// from anybody: only a file of the directory's own, of no more than some size, that is what its
// name says. Errors: kInvalidData naming the file.
std::optional<std::string> read_companion(const fs::path& directory, const std::string& name) {
  const fs::path path = directory / name;
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) {
    return std::nullopt;
  }
  if (const auto end = leads_out(directory, name)) {
    fail(ErrorCode::kInvalidData,
         "{} is a link to {}, which is not part of {}: found a file that others would get with "
         "the model, expected one of the directory's own (put a copy in the link's place, or "
         "remove it)",
         path.string(),
         end->string(),
         directory.string());
  }
  TESSERA_REQUIRE(fs::is_regular_file(path, error),
                  ErrorCode::kInvalidData,
                  "{} is not a regular file",
                  path.string());
  const std::uintmax_t size = fs::file_size(path, error);
  TESSERA_REQUIRE(!error && size <= kMostBytes,
                  ErrorCode::kInvalidData,
                  "{}: found {} bytes, expected at most {}",
                  path.string(),
                  size,
                  kMostBytes);
  std::string text = read_file(path);
  if (path.extension() == ".json") {
    const auto json = parse_json(text, {.name = path.string()});
    TESSERA_REQUIRE(json.is_object(),
                    ErrorCode::kInvalidData,
                    "{}: byte 0: found a JSON {}, expected an object",
                    path.string(),
                    json.type_name());
  } else {
    const std::size_t valid = std::min(valid_utf8_prefix(text), text.find('\0'));
    TESSERA_REQUIRE(valid == text.size() || text.empty(),
                    ErrorCode::kInvalidData,
                    "{}: byte {}: found no UTF-8 text, expected a chat template",
                    path.string(),
                    valid);
  }
  return text;
}

// Beside the checkpoint's own files, or its run's.
std::optional<fs::path> find_kept(const fs::path& checkpoint) {
  std::error_code error;
  const fs::path place = fs::canonical(checkpoint, error);
  for (const fs::path& above : {place, place.parent_path().parent_path()}) {
    std::error_code absent;
    if (!error && fs::is_directory(above / kFolder, absent)) {
      TESSERA_REQUIRE(!fs::is_symlink(above / kFolder, absent),
                      ErrorCode::kInvalidData,
                      "{} is a link, expected the directory that an import or a run made",
                      (above / kFolder).string());
      return above / kFolder;
    }
  }
  return std::nullopt;
}

std::string to_text(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

Companions::Companions(const fs::path& source) {
  for (const char* const name :
       {kConfig, kGenerationConfig, kTokenizerConfig, kSpecialTokens, kChatTemplate}) {
    if (std::optional<std::string> text = read_companion(source, name)) {
      files_.emplace(name, *std::move(text));
    }
  }
}

void Companions::keep(const fs::path& directory) const {
  const fs::path folder = directory / kFolder;
  const fs::path made = directory / format(".tmp-{}", kFolder);
  std::error_code error;
  fs::remove_all(made, error);  // what a kill has left
  create_durable_directories(made);
  for (const auto& [name, text] : files_) {
    write_file_atomic(made / name, text);
  }
  // In one go: a folder that is there is whole.
  fs::rename(made, folder, error);
  TESSERA_REQUIRE(
      !error, ErrorCode::kDeviceError, "cannot create {}: {}", folder.string(), error.message());
  sync_directory(directory);
}

void keep_companions(const RunConfig& config,
                     const fs::path& run_dir,
                     const std::string& tokenizer_checksum) {
  std::error_code error;
  if (config.model.weights.empty() || fs::exists(run_dir / kFolder, error) ||
      !fs::exists(config.model.weights, error)) {
    return;
  }
  std::optional<fs::path> source = config.model.weights;
  const std::optional<fs::path> theirs = weights_tokenizer(config.model.weights);
  if (const std::optional<fs::path> checkpoint = weights_checkpoint(config.model.weights)) {
    source = find_kept(*checkpoint);
  }
  if (source && theirs && fs::exists(*theirs, error) &&
      tessera::tokenizer_checksum(*theirs) == tokenizer_checksum) {
    Companions(*source).keep(run_dir);
  }
}

ExportCompanions::ExportCompanions(const fs::path& checkpoint,
                                   const RunConfig& config,
                                   const std::optional<Tokenizer>& tokenizer,
                                   HuggingFaceFacts& facts)
    : kept_(find_kept(checkpoint)), tokenizer_(tokenizer), facts_(facts) {
  if (kept(kConfig)) {
    const HuggingFaceModel theirs = read_hugging_face_model(*kept_);
    facts.sequence_length = std::max(facts.sequence_length, theirs.facts.sequence_length);
    if (!theirs.facts.bos.empty()) {
      facts.bos = theirs.facts.bos;
    }
    if (!theirs.facts.eos.empty() && !has_own_eos()) {
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

// Whether the run was told of other tokens that end a text than the kept files name.
bool ExportCompanions::has_own_eos() const {
  return tokenizer_ && !std::ranges::is_permutation(read_text_marks(*kept_, *tokenizer_).eos,
                                                    tokenizer_->marks().eos);
}

void ExportCompanions::write(const fs::path& directory) const {
  if (tokenizer_) {
    write_file_atomic(directory / kTokenizerConfig, tokenizer_config());
  }
  if (!kept_) {
    return;
  }
  for (const char* const name : {kGenerationConfig, kSpecialTokens, kChatTemplate}) {
    if (const std::optional<std::string> text = kept(name)) {
      write_file_atomic(directory / name,
                        name == kGenerationConfig ? generation_config(*text)
                        : name == kSpecialTokens  ? with_marks(*text, false)
                                                  : *text);
    }
  }
}

// The text of an object that names a tokenizer's marks, as it came where they are the same.
// `is_config`: it also says whether BOS stands before texts.
std::string ExportCompanions::with_marks(const std::string& text, bool is_config) const {
  if (!tokenizer_ || !kept_) {
    return text;
  }
  const TextMarks theirs = read_text_marks(*kept_, *tokenizer_);
  const TextMarks& ours = tokenizer_->marks();
  OrderedJson json = OrderedJson::parse(text);
  const auto name = [&](const char* key, const std::vector<std::int32_t>& ids) {
    json[key] = ids.empty() ? OrderedJson() : OrderedJson(tokenizer_->spelling(ids.front()));
  };
  if (theirs.eos.empty() ? !ours.eos.empty()
                         : ours.eos.empty() || theirs.eos.front() != ours.eos.front()) {
    name("eos_token", ours.eos);
  }
  if (theirs.before != ours.before && !ours.before.empty()) {
    name("bos_token", ours.before);
  }
  if (theirs.before != ours.before && is_config) {
    json["add_bos_token"] = !ours.before.empty();
  }
  return json == OrderedJson::parse(text) ? text : to_text(json);
}

std::optional<std::string> ExportCompanions::kept(const std::string& name) const {
  return kept_ ? read_companion(*kept_, name) : std::nullopt;
}

// As it came, but for other marks, and a template that a run of conversations gives to a model
// without one.
std::string ExportCompanions::tokenizer_config() const {
  const std::optional<std::string> theirs = kept(kTokenizerConfig);
  std::string text =
      theirs ? with_marks(*theirs, true) : hugging_face_tokenizer_config(*tokenizer_);
  if (chat_template_.empty() || kept(kChatTemplate)) {
    return text;
  }
  OrderedJson json = OrderedJson::parse(text);
  if (json.contains("chat_template")) {
    return text;
  }
  json["chat_template"] = chat_template_;
  return to_text(json);
}

// As it came, but for other tokens that end a text, or an answer.
std::string ExportCompanions::generation_config(const std::string& text) const {
  if (chat_template_.empty() && !has_own_eos()) {
    return text;
  }
  OrderedJson json = OrderedJson::parse(text);
  json["eos_token_id"] = facts_.eos;
  return to_text(json);
}

}  // namespace tessera
