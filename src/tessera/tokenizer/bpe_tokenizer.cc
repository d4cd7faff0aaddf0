#include "tessera/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/utf8.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/text_cut.h"
#include "tessera/tokenizer/text_parts.h"
#include "tessera/tokenizer/token_decoder.h"

namespace tessera {
namespace {

// The first that a tokenizer has counts.
constexpr std::array<std::string_view, 4> kBosNames = {
    "<|begin_of_text|>", "<s>", "<|startoftext|>", "<|endoftext|>"};
constexpr std::array<std::string_view, 3> kEosNames = {"<|end_of_text|>", "</s>", "<|endoftext|>"};

std::optional<std::int32_t> find_special(const TokenizerSpec& spec,
                                         std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    for (const AddedToken& token : spec.added) {
      if (token.special && token.content == name) {
        return token.id;
      }
    }
  }
  return std::nullopt;
}

TokenizerSpec checked(TokenizerSpec spec) {
  check_spec(spec, ErrorCode::kInvalidArgument);
  return spec;
}

std::vector<AddedTokenFinder::Entry> entries(const TokenizerSpec& spec,
                                             bool with_special,
                                             const Normalizer* normalizer) {
  std::vector<AddedTokenFinder::Entry> result;
  for (const AddedToken& token : spec.added) {
    if (token.normalized != (normalizer != nullptr) || (token.special && !with_special)) {
      continue;
    }
    std::string memory;
    const std::string text(normalizer == nullptr ? token.content
                                                 : normalizer->run(token.content, memory));
    if (!text.empty()) {
      result.push_back({.text = text, .id = token.id, .rule = token.rule});
    }
  }
  return result;
}

std::vector<NormalizerStep> steps_without_prepend(std::vector<NormalizerStep> steps) {
  std::erase_if(steps, [](const NormalizerStep& step) {
    return step.kind == NormalizerStep::Kind::kPrepend;
  });
  return steps;
}

// Whether a step does nothing over a space between two ASCII letters or digits but make it the
// mark.
bool keeps_words_apart(const NormalizerStep& step) {
  return step.kind != NormalizerStep::Kind::kReplace ||
         (step.from == " " && step.to == kSpaceSymbol);
}

bool may_part(const TokenizerSpec& spec, const Normalizer& normalizer, const WordCutter& cutter) {
  // Where words begin with the mark no merge reaches over a cut; an added token must not either.
  return spec.alphabet == Alphabet::kCharacters && cutter.cuts_at_space_symbol_alone() &&
         std::ranges::all_of(spec.normalizer, keeps_words_apart) &&
         std::ranges::none_of(spec.added, [&](const AddedToken& token) {
           std::string memory;
           return token.normalized &&
                  (spans_words(normalizer.run(token.content, memory)) || token.rule.single_word);
         });
}

// How texts made of characters are cut.
PartRule make_part_rule(const TokenizerSpec& spec,
                        const Normalizer& normalizer,
                        const WordCutter& cutter) {
  if (!may_part(spec, normalizer, cutter)) {
    return {};
  }
  PartRule rule{.bytes = kPartBytes, .most = std::size_t{16} << 20U};
  Joints& joints = rule.joints;
  for (const std::string& token : spec.tokens) {
    joints.add(token);
  }
  if (spec.byte_fallback && missing_bytes(spec).empty()) {
    joints.fall_back_to_bytes();
  }
  std::string memory;
  for (const AddedToken& token : spec.added) {
    joints.add(token.normalized ? normalizer.run(token.content, memory) : token.content);
    joints.add_end(token.content);
  }
  return rule;
}

// Whether an added token that is looked for in the text as it is may reach over a cut.
bool may_reach_over_cuts(const AddedToken& token) {
  return !token.normalized && !token.special &&
         (spans_words(token.content) || token.rule.single_word);
}

}  // namespace

BpeTokenizer::Finders::Finders(const TokenizerSpec& spec,
                               const Normalizer& normalizer,
                               bool with_special)
    : raw(entries(spec, with_special, nullptr)),
      normalized(entries(spec, with_special, &normalizer)) {}

BpeTokenizer::BpeTokenizer(TokenizerSpec spec)
    : spec_(checked(std::move(spec))),
      normalizer_(spec_.normalizer),
      rest_normalizer_(steps_without_prepend(spec_.normalizer)),
      cutter_(spec_),
      encoder_(spec_),
      plain_added_(spec_, normalizer_, false),
      all_added_(spec_, normalizer_, true),
      special_(spec_.tokens.size()),
      cuts_lines_(may_cut_text(spec_)),
      part_rule_(make_part_rule(spec_, normalizer_, cutter_)),
      finds_cuts_(cuts_lines_ || std::ranges::none_of(spec_.added, may_reach_over_cuts)) {
  for (const AddedToken& token : spec_.added) {
    special_[static_cast<std::size_t>(token.id)] = token.special;
  }
  if (spec_.alphabet == Alphabet::kBytes) {
    return;
  }
  for (const std::string& token : spec_.tokens) {
    texts_.push_back(decode_alone(spec_.decoder, token));
  }
}

std::int32_t BpeTokenizer::vocab_size() const {
  return static_cast<std::int32_t>(spec_.tokens.size());
}

void BpeTokenizer::encode(std::string_view text,
                          EncodeOptions options,
                          const TokenOutput& out) const {
  const Finders& added = options.parse_special ? all_added_ : plain_added_;
  WordEncoder::Text words(encoder_, text, out);
  cut_at_added(
      added.raw,
      text,
      [&](std::string_view stretch, std::size_t begin) {
        for_each_part(stretch,
                      begin_of(stretch, options.continues && begin == 0),
                      part_rule_,
                      [&](std::string_view part, PartBegin at) {
                        encode_part(part, at, begin == 0, added.normalized, words);
                      });
      },
      [&](std::int32_t id) { words.add_token(id); });
}

void BpeTokenizer::encode_part(std::string_view text,
                               PartBegin part,
                               bool is_first,
                               const AddedTokenFinder& added,
                               WordEncoder::Text& words) const {
  std::string valid_memory;
  std::string normalized_memory;
  if (spec_.alphabet == Alphabet::kCharacters) {
    text = valid_utf8(text, valid_memory);
  }
  const Normalizer& normalizer = part == PartBegin::kText ? normalizer_ : rest_normalizer_;
  const StretchBegin front = part == PartBegin::kWord               ? StretchBegin::kInWord
                             : is_first && part == PartBegin::kText ? StretchBegin::kText
                                                                    : StretchBegin::kBetween;
  cut_at_added(
      added,
      normalizer.run(text, normalized_memory),
      [&](std::string_view stretch, std::size_t begin) {
        cutter_.cut(
            stretch,
            begin == 0 ? front : StretchBegin::kBetween,
            [&](std::string_view word, const char* word_end) { words.add(word, word_end); });
      },
      [&](std::int32_t id) { words.add_token(id); });
}

std::size_t BpeTokenizer::find_cut(std::string_view text, std::size_t most) const {
  return !finds_cuts_  ? 0
         : cuts_lines_ ? last_text_cut(text, most)
                       : part_rule_.find_cut(text, most);
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids) const {
  if (spec_.alphabet == Alphabet::kBytes) {
    std::string text;
    for (const std::int32_t id : ids) {
      text += token_bytes(id);
    }
    return text;
  }
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    tokens.push_back(spec_.tokens[static_cast<std::size_t>(id)]);
  }
  return run_decoder(spec_.decoder, std::move(tokens));
}

std::string_view BpeTokenizer::token_bytes(std::int32_t id) const {
  const bool is_bytes = spec_.alphabet == Alphabet::kBytes;
  return (is_bytes ? spec_.tokens : texts_)[static_cast<std::size_t>(id)];
}

std::string BpeTokenizer::spelling(std::int32_t id) const {
  const std::string& token = spec_.tokens[static_cast<std::size_t>(id)];
  const bool is_added = std::ranges::find(spec_.added, id, &AddedToken::id) != spec_.added.end();
  return spec_.alphabet == Alphabet::kBytes && !is_added ? to_byte_level(token) : token;
}

bool BpeTokenizer::is_special(std::int32_t id) const {
  return special_[static_cast<std::size_t>(id)];
}

TextMarks BpeTokenizer::marks() const {
  const auto eos = spec_.after.empty() ? find_special(spec_, kEosNames) : spec_.after.back();
  return {.before = spec_.before,
          .eos = eos ? std::vector{*eos} : std::vector<std::int32_t>(),
          .bos = spec_.before.empty() ? find_special(spec_, kBosNames) : spec_.before.front(),
          .after = spec_.after};
}

std::string BpeTokenizer::kind() const {
  return spec_.alphabet == Alphabet::kBytes ? "byte-level BPE"
         : spec_.byte_fallback              ? "SentencePiece-style BPE with byte fallback"
                                            : "SentencePiece-style BPE";
}

bool BpeTokenizer::is_lossless() const {
  return spec_.alphabet == Alphabet::kBytes && spec_.normalizer.empty() &&
         missing_bytes(spec_).empty() &&
         std::ranges::all_of(spec_.splits,
                             [](const Split& split) {
                               return split.behavior != SplitBehavior::kRemoved ||
                                      keeps_matches(split);
                             }) &&
         std::ranges::none_of(spec_.added, [](const AddedToken& token) {
           return !token.special && token.rule.strips();
         });
}

}  // namespace tessera
