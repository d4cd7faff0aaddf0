#include "tessera/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/tokenizer/json_node.h"
#include "tessera/tokenizer/regex.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/vocabulary.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// A part of the pipeline is null, one step, or a "Sequence" of them under `key`: its steps.
std::vector<JsonNode> steps_of(const JsonNode& node, const std::string& key) {
  if (node.is_null()) {
    return {};
  }
  if (node.at("type").string() != "Sequence") {
    return {node};
  }
  node.expect_object({"type", key});
  const JsonNode parts = node.at(key);
  std::vector<JsonNode> steps;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::vector<JsonNode> inner = steps_of(parts.element(i), key);
    steps.insert(steps.end(), inner.begin(), inner.end());
  }
  return steps;
}

std::vector<JsonNode> steps_of(const std::optional<JsonNode>& node, const std::string& key) {
  return node ? steps_of(*node, key) : std::vector<JsonNode>();
}

std::string type_of(const JsonNode& node) {
  return node.at("type").string();
}

[[noreturn]] void refuse_type(const JsonNode& node, std::string_view supported) {
  node.at("type").support(false, supported);
  fail(ErrorCode::kInternal, "support() let {} pass", node.place());
}

std::string read_text(const JsonNode& node) {
  node.expect(!node.string().empty(), "text");
  return node.string();
}

// The text of {"String": text}.
std::string read_plain_pattern(const JsonNode& node) {
  node.expect_object({"String"});
  return read_text(node.at("String"));
}

NormalizerStep read_normalizer_step(const JsonNode& node) {
  using Kind = NormalizerStep::Kind;
  const std::string type = type_of(node);
  const std::pair<std::string_view, Kind> forms[] = {
      {"NFC", Kind::kNfc}, {"NFD", Kind::kNfd}, {"NFKC", Kind::kNfkc}, {"NFKD", Kind::kNfkd}};
  for (const auto& [name, kind] : forms) {
    if (type == name) {
      node.expect_object({"type"});
      return {.kind = kind, .from = "", .to = ""};
    }
  }
  if (type == "Prepend") {
    node.expect_object({"type", "prepend"});
    return {.kind = Kind::kPrepend, .from = "", .to = node.at("prepend").string()};
  }
  if (type == "Replace") {
    node.expect_object({"type", "pattern", "content"});
    return {.kind = Kind::kReplace,
            .from = read_plain_pattern(node.at("pattern")),
            .to = node.at("content").string()};
  }
  refuse_type(node, "NFC, NFD, NFKC, NFKD, Prepend, Replace or a Sequence of them");
}

bool byte_level_uses_regex(const JsonNode& node) {
  node.expect_object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  node.at("add_prefix_space");
  node.require_false("add_prefix_space");
  return node.boolean_or("use_regex", true);
}

// A regular expression that matches `text` alone.
std::string quote_for_regex(std::string_view text) {
  constexpr std::string_view kSpecial = "\\^$.[]|()?*+{}-#&";
  std::string result;
  for (const char c : text) {
    result += kSpecial.find(c) == std::string_view::npos ? "" : "\\";
    result += c;
  }
  return result;
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string name = node.string();
  const auto found = std::ranges::find(kSplitBehaviors, name);
  node.support(found != kSplitBehaviors.end(),
               "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
  return static_cast<SplitBehavior>(found - kSplitBehaviors.begin());
}

std::string read_split_pattern(const JsonNode& pattern) {
  pattern.expect_object({"Regex", "String"});
  if (const auto text = pattern.find("String")) {
    return quote_for_regex(read_text(*text));
  }
  const JsonNode regex = pattern.at("Regex");
  with_context([&] { return "the pattern of " + regex.place(); }, [&] { Regex(regex.string()); });
  return regex.string();
}

Split read_split(const JsonNode& node) {
  node.expect_object({"type", "pattern", "behavior", "invert"});
  return {.pattern = read_split_pattern(node.at("pattern")),
          .behavior = read_behavior(node.at("behavior")),
          .invert = node.boolean_or("invert", false)};
}

// Nothing if `node` is another kind of step.
std::optional<Split> read_cut(const JsonNode& node) {
  const std::string type = type_of(node);
  if (type == "Split") {
    return read_split(node);
  }
  if (type == "Digits") {
    node.expect_object({"type", "individual_digits"});
    return Split{.pattern = node.boolean_or("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"};
  }
  if (type == "Punctuation") {
    node.expect_object({"type", "behavior"});
    const auto behavior = node.find("behavior");
    // What ASCII calls punctuation, which Unicode calls symbols in part, and what Unicode calls so.
    return Split{.pattern = R"([!-/:-@\[-`{-~\p{P}])",
                 .behavior = behavior ? read_behavior(*behavior) : SplitBehavior::kIsolated};
  }
  return std::nullopt;
}

Metaspace read_metaspace(const JsonNode& node) {
  node.expect_object(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  Metaspace metaspace{.replacement = read_text(node.at("replacement")),
                      .prepend = node.boolean_or("add_prefix_space", true)
                                     ? Metaspace::Prepend::kAlways
                                     : Metaspace::Prepend::kNever,
                      .split = node.boolean_or("split", true)};
  if (const auto scheme = node.find("prepend_scheme")) {
    const std::string name = scheme->string();
    scheme->expect(name == "always" || name == "first" || name == "never",
                   "\"always\", \"first\" or \"never\"");
    metaspace.prepend = name == "always"  ? Metaspace::Prepend::kAlways
                        : name == "first" ? Metaspace::Prepend::kFirst
                                          : Metaspace::Prepend::kNever;
  }
  return metaspace;
}

// Sets how text is cut, and with it the alphabet.
void read_pre_tokenizer(const std::optional<JsonNode>& node, TokenizerSpec& spec) {
  const std::vector<JsonNode> steps = steps_of(node, "pretokenizers");
  spec.alphabet = Alphabet::kCharacters;
  for (const JsonNode& step : steps) {
    const std::string type = type_of(step);
    if (auto cut = read_cut(step)) {
      cut->in_byte_alphabet = spec.alphabet == Alphabet::kBytes;
      spec.splits.push_back(*std::move(cut));
    } else if (type == "ByteLevel") {
      step.support(spec.alphabet == Alphabet::kCharacters, "one ByteLevel");
      spec.alphabet = Alphabet::kBytes;
      if (byte_level_uses_regex(step)) {
        spec.splits.push_back({.pattern = std::string(kGpt2Pattern)});
      }
    } else if (type == "Metaspace") {
      step.support(steps.size() == 1, "Metaspace alone");
      spec.metaspace = read_metaspace(step);
    } else {
      refuse_type(step, "Split, Digits, Punctuation and ByteLevel, or Metaspace");
    }
  }
}

DecoderStep read_decoder_step(const JsonNode& node) {
  using Kind = DecoderStep::Kind;
  // More would only strip more of what no text has so many of.
  constexpr std::size_t kMaxStripped = 1000;
  const std::string type = type_of(node);
  if (type == "Replace") {
    node.expect_object({"type", "pattern", "content"});
    return {.kind = Kind::kReplace,
            .from = read_plain_pattern(node.at("pattern")),
            .to = node.at("content").string()};
  }
  if (type == "ByteFallback" || type == "Fuse") {
    node.expect_object({"type"});
    return {.kind = type == "Fuse" ? Kind::kFuse : Kind::kByteFallback, .from = "", .to = ""};
  }
  if (type == "Strip") {
    node.expect_object({"type", "content", "start", "stop"});
    return {.kind = Kind::kStrip,
            .from = read_text(node.at("content")),
            .to = "",
            .start = node.at("start").count(kMaxStripped),
            .stop = node.at("stop").count(kMaxStripped)};
  }
  if (type == "Metaspace") {
    const Metaspace metaspace = read_metaspace(node);
    return {.kind = Kind::kMetaspace,
            .from = metaspace.replacement,
            .to = " ",
            .strip_first = metaspace.prepend != Metaspace::Prepend::kNever};
  }
  refuse_type(node, "Replace, ByteFallback, Fuse, Strip, Metaspace or a Sequence of them");
}

void read_decoder(const JsonNode& node, TokenizerSpec& spec) {
  const std::vector<JsonNode> steps = steps_of(node, "decoders");
  if (spec.alphabet == Alphabet::kBytes) {
    node.support(steps.size() == 1 && type_of(steps.front()) == "ByteLevel",
                 "a ByteLevel decoder with a ByteLevel pre-tokenizer");
    return;
  }
  node.support(!steps.empty(), "a decoder");
  for (const JsonNode& step : steps) {
    step.support(type_of(step) != "ByteLevel",
                 "a ByteLevel decoder with a ByteLevel pre-tokenizer only");
    spec.decoder.push_back(read_decoder_step(step));
  }
}

// The ids that a template stands for: {"SpecialToken": {"id": name, ..}}.
void append_template_token(const JsonNode& token,
                           const JsonNode& names,
                           std::size_t vocab_size,
                           std::vector<std::int32_t>& out) {
  const JsonNode ids = names.at(token.at("id").string()).at("ids");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    out.push_back(ids.element(i).id(vocab_size));
  }
}

// What a TemplateProcessing puts around one text.
void read_template(const JsonNode& node, std::size_t vocab_size, TokenizerSpec& spec) {
  node.expect_object({"type", "single", "pair", "special_tokens"});
  const JsonNode items = node.at("single");
  const JsonNode names = node.at("special_tokens");
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
  int num_texts = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const JsonNode item = items.element(i);
    item.expect_object({"SpecialToken", "Sequence"});
    if (const auto token = item.find("SpecialToken")) {
      append_template_token(*token, names, vocab_size, num_texts == 0 ? before : after);
    } else {
      ++num_texts;
    }
  }
  items.expect(num_texts == 1, "a list with the text (\"Sequence\") once");
  // Of several, each works on what the one before it made.
  spec.before.insert(spec.before.begin(), before.begin(), before.end());
  spec.after.insert(spec.after.end(), after.begin(), after.end());
}

void read_post_processor(const JsonNode& node, std::size_t vocab_size, TokenizerSpec& spec) {
  for (const JsonNode& step : steps_of(node, "processors")) {
    const std::string type = type_of(step);
    if (type == "TemplateProcessing") {
      read_template(step, vocab_size, spec);
    } else if (type != "ByteLevel") {  // which changes offsets only
      refuse_type(step, "\"ByteLevel\", \"TemplateProcessing\" or a \"Sequence\" of them");
    }
  }
  spec.post_processor = node.json().dump();
}

void require_no_affix(const JsonNode& model, const char* key) {
  if (const auto node = model.find(key)) {
    node->support(node->is_null() || node->string().empty(), "null or \"\"");
  }
}

void check_model(const JsonNode& model) {
  model.expect_object({"type",
                       "dropout",
                       "unk_token",
                       "continuing_subword_prefix",
                       "end_of_word_suffix",
                       "fuse_unk",
                       "byte_fallback",
                       "ignore_merges",
                       "vocab",
                       "merges"});
  if (const auto type = model.find("type")) {  // GPT-2's file has none
    type->support(type->string() == "BPE", "\"BPE\"");
  }
  model.require_null("dropout");
  require_no_affix(model, "continuing_subword_prefix");
  require_no_affix(model, "end_of_word_suffix");
}

// "a b" or ["a", "b"].
void add_merge(const JsonNode& merge, Vocabulary& vocabulary) {
  if (merge.json().is_string()) {
    vocabulary.add_merge(merge.string(), [&] { return merge.place(); });
    return;
  }
  merge.expect(merge.json().is_array() && merge.json().size() == 2, "two tokens");
  vocabulary.add_merge(
      merge.element(0).string(), merge.element(1).string(), [&] { return merge.place(); });
}

// What becomes of characters, or bytes, that are no token.
void read_unknown(const JsonNode& model, const Vocabulary& vocabulary, TokenizerSpec& spec) {
  const bool is_bytes = spec.alphabet == Alphabet::kBytes;
  if (is_bytes) {
    model.require_false("byte_fallback");
  }
  spec.byte_fallback = model.boolean_or("byte_fallback", false);
  spec.fuse_unk = model.boolean_or("fuse_unk", false);
  const auto token = model.find("unk_token");
  if (token && !token->is_null()) {
    spec.unk = vocabulary.find(token->string());
    // Of bytes, where all have tokens, nothing asks for it.
    token->expect(is_bytes || spec.unk.has_value(), "a token of /model/vocab");
  }
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text) {
  const Json json = parse_json(text, {.unique_keys = false});
  const JsonNode root(json, "", text);
  root.expect_object({"version",
                      "truncation",
                      "padding",
                      "added_tokens",
                      "normalizer",
                      "pre_tokenizer",
                      "post_processor",
                      "decoder",
                      "model"});
  // "truncation" and "padding" are of batches: what becomes of a text does not depend on them.
  const JsonNode model = root.at("model");
  check_model(model);

  TokenizerSpec spec;
  for (const JsonNode& step : steps_of(root.find("normalizer"), "normalizers")) {
    spec.normalizer.push_back(read_normalizer_step(step));
  }
  read_pre_tokenizer(root.find("pre_tokenizer"), spec);
  read_decoder(root.at("decoder"), spec);
  spec.ignore_merges = model.boolean_or("ignore_merges", false);
  const Json no_tokens = Json::array();
  Vocabulary vocabulary(model.at("vocab"),
                        root.find("added_tokens").value_or(JsonNode(no_tokens, "/added_tokens")),
                        spec.alphabet);
  const JsonNode merges = model.at("merges");
  for (std::size_t i = 0; i < merges.size(); ++i) {
    add_merge(merges.element(i), vocabulary);
  }
  read_unknown(model, vocabulary, spec);
  if (const auto post_processor = root.find("post_processor")) {
    read_post_processor(*post_processor, vocabulary.size(), spec);
  }
  vocabulary.give(spec);
  with_context([&] { return format("what {} and /added_tokens say together", model.place()); },
               [&] { check_spec(spec, ErrorCode::kInvalidData); });
  return spec;
}

}  // namespace tessera
