#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
  return format(R"({{"id": {}, "content": {}, "single_word": {}, "lstrip": {}, "rstrip": {}, )"
                R"("normalized": {}, "special": {}}})",
                token.id,
                quoted(token.content),
                token.rule.single_word,
                token.rule.lstrip,
                token.rule.rstrip,
                token.normalized,
                token.special);
}

constexpr std::string_view kMetaspaceNames[] = {"never", "first", "always"};

// The steps of a pipeline's part: null, the one, or a "Sequence" of them under `key`.
Json sequence(std::vector<Json> steps, const char* key) {
  if (steps.empty()) {
    return nullptr;
  }
  return steps.size() == 1 ? std::move(steps.front())
                           : Json{{"type", "Sequence"}, {key, std::move(steps)}};
}

Json normalizer_step(const NormalizerStep& step) {
  switch (step.kind) {
    case NormalizerStep::Kind::kNfc:
      return {{"type", "NFC"}};
    case NormalizerStep::Kind::kNfd:
      return {{"type", "NFD"}};
    case NormalizerStep::Kind::kNfkc:
      return {{"type", "NFKC"}};
    case NormalizerStep::Kind::kNfkd:
      return {{"type", "NFKD"}};
    case NormalizerStep::Kind::kPrepend:
      return {{"type", "Prepend"}, {"prepend", step.to}};
    case NormalizerStep::Kind::kReplace:
      return {{"type", "Replace"}, {"pattern", {{"String", step.from}}}, {"content", step.to}};
  }
  return nullptr;
}

Json normalizer(const TokenizerSpec& spec) {
  std::vector<Json> steps;
  for (const NormalizerStep& step : spec.normalizer) {
    steps.push_back(normalizer_step(step));
  }
  return sequence(std::move(steps), "normalizers");
}

Json split_step(const Split& split) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", split.pattern}}},
          {"behavior", kSplitBehaviors[static_cast<std::size_t>(split.behavior)]},
          {"invert", split.invert}};
}

Json pre_tokenizer(const TokenizerSpec& spec) {
  if (spec.metaspace) {
    return {{"type", "Metaspace"},
            {"replacement", spec.metaspace->replacement},
            {"prepend_scheme", kMetaspaceNames[static_cast<std::size_t>(spec.metaspace->prepend)]},
            {"split", spec.metaspace->split}};
  }
  std::vector<Json> steps;
  const auto byte_level = std::ranges::find(spec.splits, true, &Split::in_byte_alphabet);
  const std::span before(spec.splits.begin(), byte_level);
  // ByteLevel brings GPT-2's pattern along.
  const bool own_pattern =
      !before.empty() && before.back() == Split{.pattern = std::string(kGpt2Pattern)};
  for (const Split& split : before.first(before.size() - (own_pattern ? 1 : 0))) {
    steps.push_back(split_step(split));
  }
  if (spec.alphabet == Alphabet::kBytes) {
    steps.push_back({{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", true},
                     {"use_regex", own_pattern}});
  }
  for (const Split& split : std::span(byte_level, spec.splits.end())) {
    steps.push_back(split_step(split));
  }
  return sequence(std::move(steps), "pretokenizers");
}

Json decoder_step(const DecoderStep& step) {
  switch (step.kind) {
    case DecoderStep::Kind::kReplace:
      return {{"type", "Replace"}, {"pattern", {{"String", step.from}}}, {"content", step.to}};
    case DecoderStep::Kind::kByteFallback:
      return {{"type", "ByteFallback"}};
    case DecoderStep::Kind::kFuse:
      return {{"type", "Fuse"}};
    case DecoderStep::Kind::kStrip:
      return {
          {"type", "Strip"}, {"content", step.from}, {"start", step.start}, {"stop", step.stop}};
    case DecoderStep::Kind::kMetaspace:
      return {{"type", "Metaspace"},
              {"replacement", step.from},
              {"prepend_scheme", step.strip_first ? "always" : "never"},
              {"split", true}};
  }
  return nullptr;
}

Json decoder(const TokenizerSpec& spec) {
  if (spec.alphabet == Alphabet::kBytes) {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}};
  }
  std::vector<Json> steps;
  for (const DecoderStep& step : spec.decoder) {
    steps.push_back(decoder_step(step));
  }
  return sequence(std::move(steps), "decoders");
}

// The token as the file writes it.
std::string spell(const TokenizerSpec& spec, std::int32_t id) {
  const std::string& token = spec.tokens[static_cast<std::size_t>(id)];
  return spec.alphabet == Alphabet::kBytes ? to_byte_level(token) : token;
}

// The same of one that may be an added token, which is written as it is.
std::string spell_any(const TokenizerSpec& spec, std::int32_t id) {
  return std::ranges::count(spec.added, id, &AddedToken::id) > 0
             ? spec.tokens[static_cast<std::size_t>(id)]
             : spell(spec, id);
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
  // Hugging Face gives added tokens that are not in the vocabulary the ids after it, by the number
  // of its entries: with holes, all are there.
  const auto end =
      spec.holes.empty() ? std::find(is_added.rbegin(), is_added.rend(), false) : is_added.rbegin();
  const auto size = static_cast<std::size_t>(is_added.rend() - end);
  LineList lines(out);
  for (std::size_t i = 0; i < size; ++i) {
    if (std::ranges::binary_search(spec.holes, static_cast<std::int32_t>(i))) {
      continue;
    }
    const std::string& bytes = spec.tokens[i];
    lines.add(format(
        "{}: {}", quoted(is_added[i] ? bytes : spell(spec, static_cast<std::int32_t>(i))), i));
  }
}

// Sides with a space in them need the newer of the two forms.
void append_merges(const TokenizerSpec& spec, std::string& out) {
  const bool as_pairs = std::ranges::any_of(spec.merges, [&](const MergeRule& rule) {
    return spell(spec, rule.result).find(' ') != std::string::npos;
  });
  LineList lines(out);
  for (const MergeRule& rule : spec.merges) {
    const std::string left = spell(spec, rule.left);
    const std::string right = spell(spec, rule.right);
    lines.add(as_pairs ? format("[{}, {}]", quoted(left), quoted(right))
                       : quoted(format("{} {}", left, right)));
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
      "\n  ],\n  \"normalizer\": {},\n  \"pre_tokenizer\": {},\n  \"post_processor\": {},\n"
      "  \"decoder\": {},\n",
      normalizer(spec).dump(),
      pre_tokenizer(spec).dump(),
      spec.post_processor,
      decoder(spec).dump());
  out += format(
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": {},\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
      "    \"fuse_unk\": {},\n    \"byte_fallback\": {},\n    \"ignore_merges\": {},\n"
      "    \"vocab\": {{",
      spec.unk ? quoted(spell_any(spec, *spec.unk)) : "null",
      spec.fuse_unk,
      spec.byte_fallback,
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
