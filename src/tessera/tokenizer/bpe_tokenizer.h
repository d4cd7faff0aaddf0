#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/added_tokens.h"
#include "tessera/tokenizer/bpe_model.h"
#include "tessera/tokenizer/normalizer.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/text_parts.h"
#include "tessera/tokenizer/tokenizer_impl.h"
#include "tessera/tokenizer/word_cache.h"

namespace tessera {

// What a TokenizerSpec describes.
class BpeTokenizer : public TokenizerImpl {
 public:
  // Errors: as Tokenizer's constructor.
  explicit BpeTokenizer(TokenizerSpec spec);

  std::int32_t vocab_size() const override;
  void encode(std::string_view text,
              EncodeOptions options,
              std::vector<std::int32_t>& out,
              const Flush* flush) const override;
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
  class Pass;

  // The character before which words made of characters begin, and whether each starts one: of a
  // run otherwise only the first does.
  struct WordMark {
    std::string text;  // empty: a text is one word
    bool each = false;
  };

  // Added tokens that are looked for in one go.
  struct Finders {
    Finders(const TokenizerSpec& spec, const Normalizer& normalizer, bool with_special);

    AddedTokenFinder raw;         // in the text as it is
    AddedTokenFinder normalized;  // in what the normalizer made of the rest
  };

  static WordMark word_mark(const TokenizerSpec& spec);
  bool may_part() const;
  PartRule make_part_rule() const;

  TokenizerSpec spec_;
  Normalizer normalizer_;
  Normalizer rest_normalizer_;  // of text behind a cut: nothing is put in front of it
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  std::vector<unsigned char> missing_bytes_;
  WordMark mark_;
  Finders plain_added_;
  Finders all_added_;
  std::vector<std::string> texts_;  // what tokens of characters stand for; of bytes: spec_.tokens
  std::vector<bool> special_;
  bool cuts_lines_;  // at is_text_cut()
  bool merges_blocks_;
  PartRule part_rule_;
  bool finds_cuts_;  // no added token that is looked for in the text as it is reaches over one
  mutable WordCaches caches_;
};

}  // namespace tessera
