#include "tessera/tokenizer/text_marks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json.h"
#include "tessera/tokenizer/json_node.h"
#include "tessera/tokenizer/side_files.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kSpecialTokensMap = "special_tokens_map.json";
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kConfig = "config.json";

// A file of this kind has some KiB, with a chat template some dozens.
constexpr std::uintmax_t kMostBytes = std::uintmax_t{16} << 20U;

// A value, and the file and key that say it.
template <class T>
struct Said {
  T value;
  std::string place;
};

// What the files of a directory say; what none of them has a word on is not there.
struct Saying {
  std::optional<Said<std::string>> bos;
  std::optional<Said<std::string>> eos;
  bool has_no_bos = false;  // the tokenizer's files say null
  std::optional<Said<bool>> add_bos;
  std::optional<Said<bool>> add_eos;
  std::optional<Said<std::vector<std::int32_t>>> bos_ids;  // of the model
  std::optional<Said<std::vector<std::int32_t>>> eos_ids;
};

bool is_readable_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) <= kMostBytes && !error;
}

bool has_any(const fs::path& directory) {
  return std::ranges::any_of(
      std::array{kTokenizerConfig, kSpecialTokensMap, kGenerationConfig, kConfig},
      [&](const char* name) { return is_readable_file(directory / name); });
}

std::string place_of(const fs::path& path, std::string_view key) {
  return format("{} of {}", key, path.string());
}

// One of the directory's files.
class File {
 public:
  File(const fs::path& directory, const char* name)
      : path_(directory / name),
        json_(is_readable_file(path_) ? read_json_object(path_) : nlohmann::json::object()) {}

  const fs::path& path() const { return path_; }

  bool has(const char* key) const { return json_.contains(key); }

  bool has_null(const char* key) const { return has(key) && json_[key].is_null(); }

  // A text, or `member` of that object in a list whose "name" is `name`; "" where there is none.
  std::string named_text(const char* key, const char* member, const char* name) const {
    if (!has(key)) {
      return "";
    }
    nlohmann::json value = json_[key];
    for (const nlohmann::json& entry : json_[key].is_array() ? json_[key] : nlohmann::json()) {
      if (entry.is_object() && entry.contains(member) && entry.value("name", "") == name) {
        value = entry[member];
      }
    }
    return value.is_string() ? value.get<std::string>() : "";
  }

  bool says_false(const char* key) const {
    return has(key) && json_[key].is_boolean() && !json_[key].get<bool>();
  }

  // A token by its text, or as an object with it.
  std::optional<Said<std::string>> token(const char* key) const {
    if (!has(key) || has_null(key)) {
      return std::nullopt;
    }
    const nlohmann::json* value = &json_[key];
    if (value->is_object() && value->contains("content")) {
      value = &(*value)["content"];
    }
    expect(value->is_string(), key, "a token, as text or as an object with its \"content\"");
    return Said<std::string>{.value = value->get<std::string>(), .place = place_of(path_, key)};
  }

  // Tokens of a list, each by its text or as an object with it.
  std::vector<std::string> names(const char* key) const {
    std::vector<std::string> found;
    for (const nlohmann::json& entry :
         has(key) && json_[key].is_array() ? json_[key] : nlohmann::json::array()) {
      const nlohmann::json& text =
          entry.is_object() && entry.contains("content") ? entry["content"] : entry;
      if (text.is_string()) {
        found.push_back(text.get<std::string>());
      }
    }
    return found;
  }

  std::optional<Said<bool>> flag(const char* key) const {
    if (!has(key) || has_null(key)) {
      return std::nullopt;
    }
    expect(json_[key].is_boolean(), key, "true or false");
    return Said<bool>{.value = json_[key].get<bool>(), .place = place_of(path_, key)};
  }

  // One id, or a list of them.
  std::optional<Said<std::vector<std::int32_t>>> ids(const char* key) const {
    if (!has(key) || has_null(key)) {
      return std::nullopt;
    }
    const nlohmann::json& value = json_[key];
    const nlohmann::json list = value.is_array() ? value : nlohmann::json::array({value});
    Said<std::vector<std::int32_t>> said{.value = {}, .place = place_of(path_, key)};
    for (const nlohmann::json& id : list) {
      const std::optional<std::int64_t> whole = whole_number(id);
      expect(whole || id.is_number_integer(), key, "the id of a token, or a list of ids");
      constexpr std::int64_t kMost = 0x7fffffff;
      said.value.push_back(
          static_cast<std::int32_t>(std::clamp<std::int64_t>(whole.value_or(kMost), -1, kMost)));
    }
    return said;
  }

 private:
  void expect(bool condition, const char* key, std::string_view expected) const {
    const JsonNode node(json_[key], "");
    TESSERA_REQUIRE(condition,
                    ErrorCode::kInvalidData,
                    "{} is {}, expected {}",
                    place_of(path_, key),
                    node.found(),
                    expected);
  }

  fs::path path_;
  nlohmann::json json_;
};

std::vector<std::int32_t> find_all(const Tokenizer& tokenizer,
                                   const std::vector<std::string>& names,
                                   const std::string& setting) {
  std::vector<std::int32_t> ids;
  for (const std::string& name : names) {
    const auto id = tokenizer.find(name);
    TESSERA_REQUIRE(id.has_value(),
                    ErrorCode::kInvalidConfig,
                    "{}: found \"{}\", which is no token of the tokenizer: expected one as "
                    "`tessera tokenizer inspect --vocab` lists them",
                    setting,
                    name);
    TESSERA_REQUIRE(*id < tokenizer.id_limit(),
                    ErrorCode::kInvalidConfig,
                    "{}: found \"{}\", id {}, for which the model has no row: its ids are 0 to {} "
                    "(a run from its weights adds rows with model.grow_vocab = true)",
                    setting,
                    name,
                    *id,
                    tokenizer.id_limit() - 1);
    ids.push_back(*id);
  }
  return ids;
}

std::vector<std::string> spellings(const Tokenizer& tokenizer,
                                   const std::vector<std::int32_t>& ids) {
  std::vector<std::string> names;
  for (const std::int32_t id : ids) {
    names.push_back(tokenizer.spelling(id));
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : " ") + name;
  }
  return text;
}

// Collects what the files say, in transformers' order, and notes where they disagree.
class Reading {
 public:
  Reading(const fs::path& directory, const Tokenizer& tokenizer)
      : directory_(directory),
        tokenizer_(tokenizer),
        config_(directory, kTokenizerConfig),
        map_(directory, kSpecialTokensMap),
        generation_(directory, kGenerationConfig),
        model_(directory, kConfig) {}

  Saying read() {
    note_of_added_tokens();
    Saying saying;
    saying.bos = token("bos_token");
    saying.eos = token("eos_token");
    saying.has_no_bos = !saying.bos && (config_.has("bos_token") || map_.has("bos_token"));
    saying.add_bos = config_.flag("add_bos_token");
    saying.add_eos = config_.flag("add_eos_token");
    saying.bos_ids = ids("bos_token_id");
    saying.eos_ids = ids("eos_token_id");
    return saying;
  }

  // chat_template.jinja counts before what tokenizer_config.json has: a text, or a list of named
  // ones.
  std::string chat_template() const {
    if (const fs::path file = directory_ / "chat_template.jinja"; is_readable_file(file)) {
      return read_file(file);
    }
    return config_.named_text("chat_template", "template", "default");
  }

  std::vector<std::string> take_notes() { return std::move(notes_); }

 private:
  // The map is of older directories: it counts where tokenizer_config.json does not describe the
  // added tokens itself.
  std::optional<Said<std::string>> token(const char* key) {
    const auto ours = config_.token(key);
    const auto map = map_.token(key);
    const bool map_counts = map_.has(key) && !config_.has("added_tokens_decoder");
    const auto& taken = map_counts ? map : config_.has(key) ? ours : map;
    if (ours && map && ours->value != map->value) {
      notes_.push_back(format("{} is {} and {} is {}: {} counts, as in transformers",
                              ours->place,
                              ours->value,
                              map->place,
                              map->value,
                              taken->value));
    }
    if (taken && !tokenizer_.find(taken->value)) {
      notes_.push_back(format("{} is \"{}\", which is no token of the tokenizer: it is passed over",
                              taken->place,
                              taken->value));
      return std::nullopt;
    }
    return taken;
  }

  // Those of them that are tokens.
  std::optional<Said<std::vector<std::int32_t>>> known(const File& file, const char* key) {
    auto said = file.ids(key);
    if (!said) {
      return std::nullopt;
    }
    std::vector<std::int32_t> tokens;
    for (const std::int32_t id : said->value) {
      if (id < 0 || id >= tokenizer_.vocab_size() ||
          std::ranges::binary_search(tokenizer_.holes(), id)) {
        notes_.push_back(format(
            "{} has {}, which is no id of the tokenizer: it is passed over", said->place, id));
      } else if (std::ranges::count(tokens, id) == 0) {
        tokens.push_back(id);
      }
    }
    said->value = std::move(tokens);
    return said->value.empty() ? std::nullopt : std::move(said);
  }

  std::optional<Said<std::vector<std::int32_t>>> ids(const char* key) {
    auto generation = known(generation_, key);
    auto model = known(model_, key);
    if (generation && model && !std::ranges::is_permutation(generation->value, model->value)) {
      notes_.push_back(format("{} and {} differ ({} and {}): the first counts, as in transformers",
                              generation->place,
                              model->place,
                              joined(spellings(tokenizer_, generation->value)),
                              joined(spellings(tokenizer_, model->value))));
    }
    return generation ? std::move(generation) : std::move(model);
  }

  void note_of_added_tokens() {
    // An added_tokens.json is of a tokenizer that lies beside it under one of transformers' names.
    const bool is_theirs =
        config_.has("added_tokens_decoder") ||
        std::ranges::any_of(std::array{"tokenizer.json", "tokenizer.model", "vocab.json"},
                            [&](const char* name) {
                              std::error_code error;
                              return fs::exists(directory_ / name, error);
                            });
    if (std::string note =
            is_theirs ? contradiction(read_side_files(directory_), tokenizer_) : std::string();
        !note.empty()) {
      notes_.push_back(std::move(note));
    }
    if (!tokenizer_.has_spec() && config_.says_false("legacy")) {
      notes_.push_back(
          format("{} is false: what comes after an added token is cut as with true, a space in "
                 "front of it",
                 place_of(config_.path(), "legacy")));
    }
    for (const File* const file : {&config_, &map_}) {
      for (const std::string& name : file->names("additional_special_tokens")) {
        if (!tokenizer_.find(name)) {
          notes_.push_back(
              format("additional_special_tokens of {} has \"{}\", which is no token of the "
                     "tokenizer: it is passed over",
                     file->path().string(),
                     name));
        }
      }
    }
  }

  const fs::path directory_;
  const Tokenizer& tokenizer_;
  File config_;
  File map_;
  File generation_;
  File model_;
  std::vector<std::string> notes_;
};

// What the directory's files make of the tokenizer's own marks.
class Resolution {
 public:
  Resolution(const Tokenizer& tokenizer, Saying saying, std::vector<std::string> notes)
      : tokenizer_(tokenizer), own_(tokenizer.own_marks()), saying_(std::move(saying)) {
    marks_.notes = std::move(notes);
  }

  TextMarks run() {
    marks_.bos = bos();
    marks_.eos = eos();
    marks_.before = before();
    marks_.after = own_.after;
    if (saying_.add_eos) {
      marks_.after = saying_.add_eos->value && !marks_.eos.empty()
                         ? std::vector<std::int32_t>{marks_.eos.front()}
                         : std::vector<std::int32_t>();
    }
    return std::move(marks_);
  }

 private:
  // Whether the first of them is an entry like any other, which a config names that nobody filled
  // in: transformers' default for GPT-NeoX is 0, whatever the tokenizer has there.
  bool is_ordinary(const std::vector<std::int32_t>& ids) const {
    const std::int32_t id = ids.front();
    const auto is_added = [&](const auto& token) { return token.id == id; };
    return !tokenizer_.is_special(id) &&
           !(tokenizer_.has_spec() && std::ranges::any_of(tokenizer_.spec().added, is_added));
  }

  std::optional<std::int32_t> bos() {
    if (!saying_.bos) {
      const bool counts = saying_.bos_ids && !(own_.bos && is_ordinary(saying_.bos_ids->value));
      return counts ? saying_.bos_ids->value.front() : own_.bos;
    }
    const std::int32_t named = *tokenizer_.find(saying_.bos->value);
    if (saying_.bos_ids && std::ranges::count(saying_.bos_ids->value, named) == 0) {
      marks_.notes.push_back(format("{} is {} and {} is {}: the tokenizer's counts",
                                    saying_.bos->place,
                                    saying_.bos->value,
                                    saying_.bos_ids->place,
                                    tokenizer_.spelling(saying_.bos_ids->value.front())));
    }
    return named;
  }

  // First the one that documents end with.
  std::vector<std::int32_t> eos() {
    std::vector<std::int32_t> model;
    if (saying_.eos_ids) {
      model = saying_.eos_ids->value;
    }
    if (!saying_.eos && !own_.eos.empty() && !model.empty() && is_ordinary(model) &&
        std::ranges::count(model, own_.eos.front()) == 0) {
      marks_.notes.push_back(format(
          "{} is {}, an ordinary entry: documents end with the tokenizer's own mark, {}, and "
          "either ends what is generated",
          saying_.eos_ids->place,
          tokenizer_.spelling(model.front()),
          tokenizer_.spelling(own_.eos.front())));
      model.insert(model.begin(), own_.eos.front());
      return model;
    }
    if (!saying_.eos) {
      if (model.size() > 1) {
        marks_.notes.push_back(
            format("{} lists {} tokens, and no file names an eos_token: "
                   "documents end with the first, {}",
                   saying_.eos_ids->place,
                   model.size(),
                   tokenizer_.spelling(model.front())));
      }
      return model.empty() ? own_.eos : model;
    }
    const std::int32_t named = *tokenizer_.find(saying_.eos->value);
    if (!model.empty() && std::ranges::count(model, named) == 0) {
      marks_.notes.push_back(
          format("{} is {} and {} is {}: documents end with the first, and either ends what is "
                 "generated",
                 saying_.eos->place,
                 saying_.eos->value,
                 saying_.eos_ids->place,
                 tokenizer_.spelling(model.front())));
    }
    std::erase(model, named);
    model.insert(model.begin(), named);
    return model;
  }

  std::vector<std::int32_t> before() {
    const bool is_model = !tokenizer_.has_spec();  // of SentencePiece: BOS is put by who loads it
    if (!saying_.add_bos) {
      if (is_model && saying_.has_no_bos) {
        return {};
      }
      return is_model && saying_.bos && !own_.before.empty()
                 ? std::vector<std::int32_t>{*marks_.bos}
                 : own_.before;
    }
    if (!saying_.add_bos->value) {
      if (!is_model && !own_.before.empty()) {
        marks_.notes.push_back(
            format("{} is false, and the post-processor of tokenizer.json puts {} before a text: "
                   "none is put",
                   saying_.add_bos->place,
                   tokenizer_.spelling(own_.before.front())));
      }
      return {};
    }
    if (!own_.before.empty() && !is_model) {
      return own_.before;
    }
    if (!marks_.bos) {
      marks_.notes.push_back(
          format("{} is true, and no file names a BOS: none is put", saying_.add_bos->place));
      return {};
    }
    return {*marks_.bos};
  }

  const Tokenizer& tokenizer_;
  TextMarks own_;
  Saying saying_;
  TextMarks marks_;
};

}  // namespace

std::vector<std::int32_t> TextMarks::beginning() const {
  return !before.empty() ? before
         : bos           ? std::vector<std::int32_t>{*bos}
         : !eos.empty()  ? std::vector<std::int32_t>{eos.front()}
                         : std::vector<std::int32_t>();
}

TextMarks read_text_marks(const fs::path& directory, const Tokenizer& tokenizer) {
  const fs::path kept = directory / "hugging_face";
  Reading reading(!has_any(directory) && has_any(kept) ? kept : directory, tokenizer);
  Saying saying = reading.read();
  TextMarks marks = Resolution(tokenizer, std::move(saying), reading.take_notes()).run();
  marks.chat_template = reading.chat_template();
  return marks;
}

Tokenizer with_named_marks(const Tokenizer& tokenizer,
                           const MarkNames& names,
                           std::string_view prefix) {
  TextMarks marks = tokenizer.marks();
  if (names.bos) {
    marks.before = find_all(tokenizer, *names.bos, format("{}bos", prefix));
    marks.bos = marks.before.empty() ? marks.bos : marks.before.front();
  }
  if (names.eos) {
    marks.eos = find_all(tokenizer, *names.eos, format("{}eos", prefix));
  }
  if (names.bos && names.eos) {
    marks.notes.clear();
  }
  return tokenizer.with_marks(std::move(marks));
}

MarkNames names_of_marks(const Tokenizer& tokenizer) {
  return {.bos = spellings(tokenizer, tokenizer.marks().before),
          .eos = spellings(tokenizer, tokenizer.marks().eos)};
}

std::string describe_marks(const Tokenizer& tokenizer) {
  const TextMarks& marks = tokenizer.marks();
  const std::string before = joined(spellings(tokenizer, marks.before));
  const std::string after = marks.eos.empty() ? "" : tokenizer.spelling(marks.eos.front());
  return before.empty() && after.empty() ? "no token around them"
         : before.empty()                ? format("{} after each", after)
         : after.empty()                 ? format("{} before each", before)
                                         : format("{} before each, {} after it", before, after);
}

}  // namespace tessera
