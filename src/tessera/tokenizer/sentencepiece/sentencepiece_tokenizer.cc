#include "tessera/tokenizer/sentencepiece/sentencepiece_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <sentencepiece_processor.h>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/base/text.h"
#include "tessera/tokenizer/added_tokens.h"
#include "tessera/tokenizer/json_node.h"
#include "tessera/tokenizer/normalizer.h"
#include "tessera/tokenizer/sentencepiece/model_facts.h"
#include "tessera/tokenizer/text_parts.h"
#include "tessera/tokenizer/tokenizer_spec.h"
#include "tessera/tokenizer/vocabulary.h"

namespace tessera {
namespace {

void require_ok(const sentencepiece::util::Status& status, std::string_view what) {
  TESSERA_REQUIRE(
      status.ok(), ErrorCode::kInvalidData, "SentencePiece cannot {}: {}", what, status.ToString());
}

// Long beside what a word's place in a sum of scores changes, short beside the 190 bytes of memory
// that the library takes a byte.
constexpr std::size_t kUnigramPartBytes = std::size_t{256} << 10U;

using Processor = sentencepiece::SentencePieceProcessor;

std::unique_ptr<const Processor> load(std::string_view model) {
  auto processor = std::make_unique<Processor>();
  require_ok(processor->LoadFromSerializedProto(model), "read the model");
  return processor;
}

// The tokens that the model is given beside its pieces, by id.
std::vector<AddedToken> read_added(std::string_view model, const Processor& processor) {
  const std::string text = added_tokens_of(model);
  std::vector<AddedToken> added;
  if (text.empty()) {
    return added;
  }
  const auto num_pieces = static_cast<std::size_t>(processor.GetPieceSize());
  const nlohmann::json json = parse_json(text, {.unique_keys = false});
  const JsonNode list(json, "the added tokens", text);
  for (std::size_t i = 0; i < list.size(); ++i) {
    AddedToken token = read_added_token(list.element(i), num_pieces + list.size() + kMaxHoles);
    const bool is_piece = static_cast<std::size_t>(token.id) < num_pieces;
    TESSERA_REQUIRE(
        !is_piece || processor.IdToPiece(token.id) == token.content,
        ErrorCode::kInvalidData,
        "the added token \"{}\" has the id {}, which is that of the model's piece \"{}\"",
        token.content,
        token.id,
        is_piece ? processor.IdToPiece(token.id) : "");
    added.push_back(std::move(token));
  }
  std::ranges::sort(added, {}, &AddedToken::id);
  const auto twice = std::ranges::adjacent_find(added, {}, &AddedToken::id);
  TESSERA_REQUIRE(twice == added.end(),
                  ErrorCode::kInvalidData,
                  "the added tokens \"{}\" and \"{}\" have the same id {}",
                  twice == added.end() ? "" : twice->content,
                  twice == added.end() ? "" : (twice + 1)->content,
                  twice == added.end() ? 0 : twice->id);
  return added;
}

// What is looked for in a text before the library gets the rest: added tokens, and on request
// special ones and control symbols.
std::vector<AddedTokenFinder::Entry> entries(const Processor& processor,
                                             const std::vector<AddedToken>& added,
                                             bool with_special) {
  std::vector<AddedTokenFinder::Entry> result;
  for (const AddedToken& token : added) {
    if (with_special || !token.special) {
      result.push_back({.text = token.content, .id = token.id, .rule = token.rule});
    }
  }
  for (std::int32_t id = 0; with_special && id < processor.GetPieceSize(); ++id) {
    const bool is_added = std::ranges::binary_search(added, id, {}, &AddedToken::id);
    if (processor.IsControl(id) && !is_added && !processor.IdToPiece(id).empty()) {
      result.push_back({.text = processor.IdToPiece(id), .id = id});
    }
  }
  return result;
}

// Whether a normalization is one of the library's own, none of whose rules has a space behind a
// letter or digit, or in front of one.
bool has_known_rules(const ModelFacts& facts) {
  constexpr std::array<std::string_view, 5> kNames = {
      "identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf"};
  return !facts.has_rules || std::ranges::count(kNames, facts.rules) > 0;
}

// Whether a part behind a cut can be given to the library so that its space is there once: as the
// one that it puts in front of a text itself, or else as it is.
bool keeps_first_space(const ModelFacts& facts) {
  return facts.adds_prefix || !facts.removes_extra_spaces;
}

// Whether a text may be cut at is_part_cut().
bool may_part(const Processor& processor, const ModelFacts& facts) {
  if (facts.whitespace_is_suffix || !facts.escapes_spaces || !has_known_rules(facts) ||
      !keeps_first_space(facts) || processor.IsUnknown(processor.PieceToId(kSpaceSymbol))) {
    return false;
  }
  for (std::int32_t id = 0; id < processor.GetPieceSize(); ++id) {
    // How the library takes a merge to an unused piece back depends on others in the text. A space
    // as such is looked for before the text is normalized.
    const std::string& piece = processor.IdToPiece(id);
    if (processor.IsUnused(id) || piece.find(' ') != std::string::npos || spans_words(piece)) {
      return false;
    }
  }
  return true;
}

PartRule part_rule(const Processor& processor, const ModelFacts& facts) {
  if (!may_part(processor, facts)) {
    return {};
  }
  // A sum of scores over a whole text is rounded as no part of it is.
  PartRule rule{.bytes = facts.is_bpe ? kPartBytes : kUnigramPartBytes,
                .most = std::size_t{1} << 20U,
                .is_exact = facts.is_bpe};
  Joints& joints = rule.joints;
  if (!facts.is_bpe) {
    joints.part_chinese();
    return rule;
  }
  for (std::int32_t id = 0; id < processor.GetPieceSize(); ++id) {
    if (processor.IsByte(id)) {
      joints.fall_back_to_bytes();
    } else if (!processor.IsControl(id) && !processor.IsUnknown(id)) {
      joints.add(processor.IdToPiece(id));
    }
  }
  if (facts.has_rules) {
    joints.fold_case();
  }
  return rule;
}

class SentencePieceTokenizer : public TokenizerImpl {
 public:
  explicit SentencePieceTokenizer(std::string_view model)
      : processor_(load(model)),
        facts_(read_model_facts(model)),
        part_rule_(part_rule(*processor_, facts_)),
        rest_processor_(part_rule_.bytes > 0 && facts_.adds_prefix ? load(without_prefix(model))
                                                                   : nullptr),
        added_(read_added(model, *processor_)),
        plain_(entries(*processor_, added_, false)),
        all_(entries(*processor_, added_, true)) {
    for (std::int32_t id = 0; id < num_pieces(); ++id) {
      texts_.push_back(text_of(id));
      special_.push_back(processor_->IsControl(id));
    }
    for (const AddedToken& token : added_) {
      for (std::size_t id = texts_.size(); id < static_cast<std::size_t>(token.id); ++id) {
        holes_.push_back(static_cast<std::int32_t>(id));
      }
      const std::size_t size = std::max(texts_.size(), static_cast<std::size_t>(token.id) + 1);
      texts_.resize(size);
      special_.resize(size);
      texts_[static_cast<std::size_t>(token.id)] = token.content;
      special_[static_cast<std::size_t>(token.id)] = token.special;
      part_rule_.joints.add(token.content);
      part_rule_.joints.add_end(token.content);
      // Chinese text is cut anywhere for a unigram model, and words at their spaces for any.
      const bool may_be_cut = spans_words(token.content) || token.rule.single_word ||
                              (!facts_.is_bpe && has_wide(token.content));
      finds_cuts_ = finds_cuts_ && (token.special || !may_be_cut);
    }
  }

  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(texts_.size()); }

  void encode(std::string_view text, EncodeOptions options, const TokenOutput& out) const override {
    cut_at_added(
        options.parse_special ? all_ : plain_,
        text,
        [&](std::string_view stretch, std::size_t begin) {
          append(stretch, options.continues && begin == 0, out);
        },
        [&](std::int32_t id) { out.ids.push_back(id); });
  }

  std::size_t find_cut(std::string_view text, std::size_t most) const override {
    return finds_cuts_ ? part_rule_.find_cut(text, most) : 0;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::vector<int> pieces;
    const auto decode_pieces = [&] {
      std::string part;
      require_ok(processor_->Decode(pieces, &part), "decode");
      text += part;
      pieces.clear();
    };
    for (const std::int32_t id : ids) {
      if (id < num_pieces()) {
        pieces.push_back(id);
      } else {
        decode_pieces();
        text += texts_[static_cast<std::size_t>(id)];
      }
    }
    decode_pieces();
    return text;
  }

  std::string_view token_bytes(std::int32_t id) const override {
    return texts_[static_cast<std::size_t>(id)];
  }

  std::string spelling(std::int32_t id) const override {
    return id < num_pieces() ? processor_->IdToPiece(id) : texts_[static_cast<std::size_t>(id)];
  }

  bool is_special(std::int32_t id) const override { return special_[static_cast<std::size_t>(id)]; }

  // A model's file does not say whether its BOS is put: Llama's and Mistral's tokenizers do.
  TextMarks marks() const override {
    return {.before = ids(processor_->bos_id()),
            .eos = ids(processor_->eos_id()),
            .bos = in_range(processor_->bos_id())};
  }

  std::string kind() const override { return "SentencePiece model"; }

  bool is_lossless() const override { return false; }

  std::span<const std::int32_t> holes() const override { return holes_; }

  const TokenizerSpec* spec() const override { return nullptr; }

 private:
  std::int32_t num_pieces() const { return processor_->GetPieceSize(); }

  static bool has_wide(std::string_view text) {
    return std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  }

  static std::optional<std::int32_t> in_range(int id) {
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }

  static std::vector<std::int32_t> ids(int id) {
    return id < 0 ? std::vector<std::int32_t>() : std::vector<std::int32_t>{id};
  }

  // What the library's decoder makes of a piece inside a text.
  std::string text_of(std::int32_t id) const {
    const std::string& piece = processor_->IdToPiece(id);
    if (processor_->IsByte(id)) {
      return {static_cast<char>(byte_of_token(piece))};
    }
    if (processor_->IsControl(id)) {
      return piece;
    }
    if (processor_->IsUnknown(id)) {
      return " \xE2\x81\x87 ";  // U+2047, the library's default surface of what is not known
    }
    return replace_all(piece, kSpaceSymbol, " ");
  }

  void append(std::string_view text, bool continues, const TokenOutput& out) const {
    if (text.empty()) {
      return;
    }
    const auto add = [&](std::string_view part, PartBegin begin) {
      // Its first space is the one that the library puts in front of a text.
      if (begin == PartBegin::kSpace && facts_.adds_prefix) {
        part.remove_prefix(1);
      }
      const bool goes_on = begin == PartBegin::kWord && rest_processor_ != nullptr;
      std::vector<int> ids;
      require_ok((goes_on ? *rest_processor_ : *processor_).Encode(part, &ids), "encode the text");
      out.ids.insert(out.ids.end(), ids.begin(), ids.end());
      out.flush_if_many();
    };
    for_each_part(text, begin_of(text, continues), part_rule_, add);
  }

  std::unique_ptr<const Processor> processor_;
  ModelFacts facts_;
  PartRule part_rule_;
  std::unique_ptr<const Processor> rest_processor_;  // of text that goes on in a word
  std::vector<AddedToken> added_;
  AddedTokenFinder plain_;
  AddedTokenFinder all_;
  std::vector<std::string> texts_;
  std::vector<bool> special_;
  std::vector<std::int32_t> holes_;
  bool finds_cuts_ = true;
};

}  // namespace

std::shared_ptr<const TokenizerImpl> load_sentencepiece(std::string_view model) {
  return std::make_shared<const SentencePieceTokenizer>(model);
}

}  // namespace tessera
