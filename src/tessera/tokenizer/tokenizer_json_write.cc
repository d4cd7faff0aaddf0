#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

std::string format_added(const AddedToken& token) {
  return format(
      R"({{"id": {}, "content": {}, "single_word": false, "lstrip": false, "rstrip": false, )"
      R"("normalized": {}, "special": {}}})",
      token.id,
      quoted(token.content),
      token.normalized,
      token.special);
}

std::string format_pre_tokenizer(const std::string& pattern) {
  const bool builtin = pattern == kGpt2Pattern;
  const std::string byte_level = format(
      R"({{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": {}}})",
      builtin);
  return builtin
             ? byte_level
             : format(R"({{"type": "Sequence", "pretokenizers": [)"
                      R"({{"type": "Split", "pattern": {{"Regex": {}}}, "behavior": "Isolated", )"
                      R"("invert": false}}, {}]}})",
                      quoted(pattern),
                      byte_level);
}

// Appends the lines, indented, with commas between.
class LineList {
 public:
  explicit LineList(std::string& out) : out_(out) {}

  void add(std::string_view line) {
    out_ += first_ ? "\n      " : ",\n      ";
    out_ += line;
    first_ = false;
  }

 private:
  std::string& out_;
  bool first_ = true;
};

void append_vocab(const TokenizerSpec& spec, std::string& out) {
  std::vector<bool> is_added(spec.tokens.size());
  for (const AddedToken& token : spec.added) {
    is_added[static_cast<std::size_t>(token.id)] = true;
  }
  // Hugging Face gives added tokens that are not in the vocabulary the ids after it.
  const auto size = static_cast<std::size_t>(is_added.rend() -
                                             std::find(is_added.rbegin(), is_added.rend(), false));
  LineList lines(out);
  for (std::size_t i = 0; i < size; ++i) {
    const std::string& bytes = spec.tokens[i];
    lines.add(format("{}: {}", quoted(is_added[i] ? bytes : to_byte_level(bytes)), i));
  }
}

void append_merges(const TokenizerSpec& spec, std::string& out) {
  const auto spelling = [&](std::int32_t id) {
    return to_byte_level(spec.tokens[static_cast<std::size_t>(id)]);
  };
  LineList lines(out);
  for (const MergeRule& rule : spec.merges) {
    lines.add(quoted(format("{} {}", spelling(rule.left), spelling(rule.right))));
  }
}

}  // namespace

std::string format_tokenizer_json(const TokenizerSpec& spec) {
  std::string out =
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
      "  \"added_tokens\": [";
  LineList added(out);
  for (const AddedToken& token : spec.added) {
    added.add(format_added(token));
  }
  out += format(
      "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {},\n  \"post_processor\": {},\n",
      format_pre_tokenizer(spec.pattern),
      spec.post_processor);
  out += R"(  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, )"
         R"("use_regex": true},)"
         "\n";
  out += format(
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
      "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": {},\n"
      "    \"vocab\": {{",
      spec.ignore_merges);
  append_vocab(spec, out);
  out += "\n    },\n    \"merges\": [";
  append_merges(spec, out);
  out += "\n    ]\n  }\n}\n";
  return out;
}

std::string bos_post_processor(const AddedToken& bos) {
  const Json begin = {{"SpecialToken", {{"id", bos.content}, {"type_id", 0}}}};
  const Json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  const Json special = {
      {"id", bos.content}, {"ids", Json::array({bos.id})}, {"tokens", Json::array({bos.content})}};
  const Json processor = {{"type", "TemplateProcessing"},
                          {"single", Json::array({begin, first})},
                          {"pair", Json::array({begin, first, begin, second})},
                          {"special_tokens", {{bos.content, special}}}};
  return processor.dump();
}

}  // namespace tessera
