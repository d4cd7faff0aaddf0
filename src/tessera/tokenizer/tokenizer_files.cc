#include "tessera/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json.h"
#include "tessera/base/text_encoding.h"
#include "tessera/data/file_kind.h"
#include "tessera/tokenizer/bpe_tokenizer.h"
#include "tessera/tokenizer/gpt2_files.h"
#include "tessera/tokenizer/sentencepiece/model_facts.h"
#include "tessera/tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "tessera/tokenizer/side_files.h"
#include "tessera/tokenizer/tiktoken.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using Impl = std::shared_ptr<const TokenizerImpl>;

// GPT-2's names and Hugging Face's for the same two files: ids, then merges.
constexpr std::array<std::pair<const char*, const char*>, 2> kPairs = {
    {{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}}};

// What is looked for in a directory, best first.
constexpr std::array<const char*, 4> kTokenizerFiles = {
    "tokenizer.json", "tokenizer.model", "encoder.json", "vocab.json"};

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool begins_with_object(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{';
}

Impl load_bpe(TokenizerSpec spec) {
  return std::make_shared<const BpeTokenizer>(std::move(spec));
}

// That a tokenizer puts a space before a text, or none, as add_prefix_space of
// tokenizer_config.json says, where transformers go by it.
void require_prefix(bool agrees, const fs::path& directory, const char* found, const char* wanted) {
  TESSERA_REQUIRE(
      agrees,
      ErrorCode::kUnsupported,
      "add_prefix_space of {} is {}, and {}: expected files that agree, as they do once "
      "the tokenizer is loaded and saved with transformers",
      (directory / "tokenizer_config.json").string(),
      found,
      wanted);
}

// GPT-2's rules alone are known for a pair.
void check_class(const fs::path& directory, const SideFiles& beside) {
  constexpr std::array<std::string_view, 3> kOthers = {"Roberta", "CLIP", "Bloom"};
  for (const std::string_view other : kOthers) {
    TESSERA_REQUIRE(!beside.tokenizer_class.starts_with(other),
                    ErrorCode::kUnsupported,
                    "tokenizer_class of {} is {}, which cuts texts or marks them by rules of its "
                    "own: expected its tokenizer.json, which transformers save",
                    (directory / "tokenizer_config.json").string(),
                    beside.tokenizer_class);
  }
  require_prefix(!beside.add_prefix_space.value_or(false),
                 directory,
                 "true",
                 "no space is put before a text of vocab.json and merges.txt");
}

// A file of a tokenizer; says what else it is, where that is known.
std::string read_tokenizer_text(const fs::path& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  std::string text = read_file(path);
  TESSERA_REQUIRE(
      !text.empty(), ErrorCode::kInvalidData, "{} is empty, expected a tokenizer", path.string());
  require_not_utf16(text, ErrorCode::kInvalidData, path.string());
  const FileKind kind = known_kind(std::string_view(text).substr(0, kFileKindBytes));
  TESSERA_REQUIRE(kind.name.empty(),
                  ErrorCode::kInvalidData,
                  "{} is {}, expected a tokenizer{}{}",
                  path.string(),
                  kind.name,
                  kind.is_of_any_file ? ": " : "",
                  kind.is_of_any_file ? kind.advice : "");
  const std::string_view rest =
      std::string_view(text).substr(std::min(kByteOrderMark.size(), text.size()));
  if (text.starts_with(kByteOrderMark) && looks_like_tiktoken(rest)) {
    text.erase(0, kByteOrderMark.size());
  }
  return text;
}

TokenizerSpec read_pair(const fs::path& encoder, const fs::path& merges) {
  TESSERA_REQUIRE(is_there(encoder) && is_there(merges),
                  ErrorCode::kInvalidData,
                  "{} is missing: {} and {} make a tokenizer together",
                  (is_there(encoder) ? merges : encoder).string(),
                  encoder.filename().string(),
                  merges.filename().string());
  const SideFiles beside = read_side_files(encoder.parent_path());
  check_class(encoder.parent_path(), beside);
  const std::string encoder_text = read_tokenizer_text(encoder);
  const std::string merges_text = read_tokenizer_text(merges);
  return with_context([&] { return format("in {} and {}", encoder.string(), merges.string()); },
                      [&] { return parse_gpt2_files(encoder_text, merges_text, beside); });
}

enum class FileForm { kJson, kTiktoken, kSentencePiece };

FileForm form_of(const std::string& text) {
  if (looks_like_tiktoken(text)) {
    return FileForm::kTiktoken;
  }
  // A protocol buffer whose first field is a list of messages begins with a line feed.
  return text.starts_with('\n') && !begins_with_object(text) ? FileForm::kSentencePiece
                                                             : FileForm::kJson;
}

Impl load_text(const std::string& text, const std::string& name) {
  switch (form_of(text)) {
    case FileForm::kTiktoken:
      return load_bpe(parse_tiktoken(text, name));
    case FileForm::kSentencePiece:
      return load_sentencepiece(text);
    case FileForm::kJson:
      break;
  }
  return load_bpe(parse_tokenizer_json(text));
}

bool puts_space(const TokenizerSpec& spec) {
  return (spec.metaspace && spec.metaspace->prepend != Metaspace::Prepend::kNever) ||
         std::ranges::any_of(spec.normalizer, [](const NormalizerStep& step) {
           return step.kind == NormalizerStep::Kind::kPrepend;
         });
}

// transformers change a pre-tokenizer that says otherwise, unless it is one of a sequence.
bool is_byte_level_alone(const std::string& text) {
  const nlohmann::json root = parse_json(text, {.unique_keys = false});
  const nlohmann::json::json_pointer type("/pre_tokenizer/type");
  return root.contains(type) && root[type] == "ByteLevel";
}

void check_prefix(const fs::path& file, const std::string& text, const TokenizerImpl& loaded) {
  const bool is_json = file.filename() == "tokenizer.json";
  const fs::path directory = file.parent_path();
  if (!is_json && file.filename() != "tokenizer.model") {
    return;
  }
  const std::optional<bool> wanted = read_side_files(directory).add_prefix_space;
  const FileForm form = form_of(text);
  if (!wanted || form == FileForm::kTiktoken) {
    return;
  }
  if (form == FileForm::kSentencePiece) {
    require_prefix(*wanted || !read_model_facts(without_added_tokens(text)).adds_prefix,
                   directory,
                   "false",
                   "tokenizer.model puts a space before a text");
    return;
  }
  const TokenizerSpec& spec = *loaded.spec();
  const bool is_bytes = spec.alphabet == Alphabet::kBytes;
  require_prefix(!*wanted || !is_bytes || !is_byte_level_alone(text),
                 directory,
                 "true",
                 "/pre_tokenizer/add_prefix_space of tokenizer.json is false");
  require_prefix(*wanted || is_bytes || !puts_space(spec),
                 directory,
                 "false",
                 "tokenizer.json puts a space before a text");
}

fs::path require_in_directory(const fs::path& directory) {
  auto found = find_tokenizer(directory);
  TESSERA_REQUIRE(found.has_value(),
                  ErrorCode::kInvalidData,
                  "{} has no tokenizer: expected {}",
                  directory.string(),
                  kTokenizerNames);
  return *std::move(found);
}

// What `path` names: one file, or two.
struct Source {
  fs::path file;
  fs::path merges;  // empty: there is none
};

Source source_of(const fs::path& path) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? require_in_directory(path) : path;
  for (const auto& [encoder, merges] : kPairs) {
    if (file.filename() == encoder || file.filename() == merges) {
      return {.file = file.parent_path() / encoder, .merges = file.parent_path() / merges};
    }
  }
  return {.file = file, .merges = {}};
}

// A tokenizer's one file. One that transformers would read has the tokens that files beside it add.
std::string read_with_side_files(const fs::path& path) {
  std::string text = read_tokenizer_text(path);
  const FileForm form = form_of(text);
  if (path.filename() == "tokenizer.json" && form == FileForm::kJson) {
    return with_tokens_beside(std::move(text), read_side_files(path.parent_path()));
  }
  if (path.filename() != "tokenizer.model" || form != FileForm::kSentencePiece) {
    return text;
  }
  const SideFiles beside = read_side_files(path.parent_path());
  return beside.added.empty() ? text : with_added_tokens(text, beside.added);
}

}  // namespace

std::optional<fs::path> find_tokenizer(const fs::path& directory) {
  for (const char* name : kTokenizerFiles) {
    if (is_there(directory / name)) {
      return directory / name;
    }
  }
  return std::nullopt;
}

Impl load_tokenizer_files(const fs::path& path) {
  const Source source = source_of(path);
  if (!source.merges.empty()) {
    return load_bpe(read_pair(source.file, source.merges));
  }
  const std::string text = read_with_side_files(source.file);
  Impl loaded = with_context([&] { return format("in {}", source.file.string()); },
                             [&] { return load_text(text, source.file.filename().string()); });
  check_prefix(source.file, text, *loaded);
  return loaded;
}

std::string read_tokenizer_file(const fs::path& path) {
  const Source source = source_of(path);
  if (!source.merges.empty()) {
    return format_tokenizer_json(read_pair(source.file, source.merges));
  }
  std::string text = read_with_side_files(source.file);
  return form_of(text) == FileForm::kTiktoken
             ? tiktoken_with_family(text, source.file.filename().string())
             : text;
}

void export_tokenizer(const fs::path& path, const fs::path& directory) {
  const std::string text = read_tokenizer_file(path);
  switch (form_of(text)) {
    case FileForm::kJson:
      write_file_atomic(directory / "tokenizer.json", text);
      return;
    case FileForm::kSentencePiece:
      write_file_atomic(directory / "tokenizer.model", without_added_tokens(text));
      if (const std::string added = added_tokens_of(text); !added.empty()) {
        write_file_atomic(directory / "added_tokens.json", format_added_tokens(added));
      }
      return;
    case FileForm::kTiktoken:
      write_file_atomic(directory / "tokenizer.json",
                        format_tokenizer_json(parse_tiktoken(text, "")));
      return;
  }
}

std::string hugging_face_tokenizer_config(const Tokenizer& tokenizer) {
  nlohmann::ordered_json config = {
      {"tokenizer_class", tokenizer.has_spec() ? "PreTrainedTokenizerFast" : "LlamaTokenizer"},
      {"clean_up_tokenization_spaces", false}};
  if (const auto bos = tokenizer.bos()) {
    config["bos_token"] = tokenizer.spelling(*bos);
  }
  if (const auto eos = tokenizer.eos()) {
    config["eos_token"] = tokenizer.spelling(*eos);
  }
  config["add_bos_token"] = !tokenizer.marks().before.empty();
  return config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tessera
