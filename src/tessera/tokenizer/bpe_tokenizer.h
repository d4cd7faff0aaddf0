#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/added_tokens.h"
#include "tessera/tokenizer/normalizer.h"
#include "tessera/tokenizer/text_parts.h"
#include "tessera/tokenizer/tokenizer_impl.h"
#include "tessera/tokenizer/tokenizer_spec.h"
#include "tessera/tokenizer/word_cutter.h"
#include "tessera/tokenizer/word_encoder.h"

namespace tessera {

// What a TokenizerSpec describes.
class BpeTokenizer : public TokenizerImpl {
 public:
  // Errors: as Tokenizer's constructor.
  explicit BpeTokenizer(TokenizerSpec spec);

  std::int32_t vocab_size() const override;
  void encode(std::string_view text, EncodeOptions options, const TokenOutput& out) const override;
  std::size_t find_cut(std::string_view text, std::size_t most) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string_view token_bytes(std::int32_t id) const override;
  std::string spelling(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override;

  TextMarks marks() const override;
  std::string kind() const override;
  bool is_lossless() const override;

  std::span<const std::int32_t> holes() const override { return spec_.holes; }

  const TokenizerSpec* spec() const override { return &spec_; }

  // How texts made of characters are cut.
  const PartRule& part_rule() const { return part_rule_; }

 private:
  // Added tokens that are looked for in one go.
  struct Finders {
    Finders(const TokenizerSpec& spec, const Normalizer& normalizer, bool with_special);

    AddedTokenFinder raw;         // in the text as it is
    AddedTokenFinder normalized;  // in what the normalizer made of the rest
  };

  // Appends the tokens of text without added tokens that are looked for in it as it is; `is_first`
  // if it is a part of the stretch at the start of the whole text.
  void encode_part(std::string_view text,
                   PartBegin part,
                   bool is_first,
                   const AddedTokenFinder& added,
                   WordEncoder::Text& words) const;

  TokenizerSpec spec_;
  Normalizer normalizer_;
  Normalizer rest_normalizer_;  // of text behind a cut: nothing is put in front of it
  WordCutter cutter_;
  WordEncoder encoder_;
  Finders plain_added_;
  Finders all_added_;
  std::vector<std::string> texts_;  // what tokens of characters stand for; of bytes: spec_.tokens
  std::vector<bool> special_;
  bool cuts_lines_;  // at is_text_cut()
  PartRule part_rule_;
  bool finds_cuts_;  // no added token that is looked for in the text as it is reaches over one
};

}  // namespace tessera
