#include "tessera/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/text_cut.h"
#include "tessera/tokenizer/text_parts.h"
#include "tessera/tokenizer/token_decoder.h"
#include "tessera/tokenizer/word_cache.h"

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

// What a normalizer or pre-tokenizer makes of a space; empty if nothing else.
std::string mark_of_spaces(const TokenizerSpec& spec) {
  if (spec.metaspace) {
    return spec.metaspace->replacement;
  }
  const auto replacing = std::ranges::find_if(spec.normalizer, [](const NormalizerStep& step) {
    return step.kind == NormalizerStep::Kind::kReplace && step.from == " ";
  });
  return replacing == spec.normalizer.end() ? "" : replacing->to;
}

// Those that can cut anything: a space that the normalizer has replaced is in no text.
std::vector<Split> active_splits(const TokenizerSpec& spec) {
  std::vector<Split> splits = spec.splits;
  const bool no_spaces =
      !spec.normalizer.empty() && spec.normalizer.back().kind == NormalizerStep::Kind::kReplace &&
      spec.normalizer.back().from == " " && spec.normalizer.back().to == kSpaceSymbol;
  std::erase_if(splits, [&](const Split& split) {
    // Where nothing matches, what is removed is nothing, or all.
    return no_spaces && split.pattern == " " &&
           (split.behavior != SplitBehavior::kRemoved || !split.invert);
  });
  return splits;
}

// Whether no merge reaches over the place before a `mark` that does not follow another: text can
// then be cut there, and each word merged by itself, without changing a token.
bool merges_stop_before(const TokenizerSpec& spec, const std::string& mark) {
  if (mark.empty() || spec.ignore_merges ||
      std::ranges::find(spec.tokens, mark) == spec.tokens.end()) {
    return false;
  }
  return std::ranges::none_of(spec.merges, [&](const MergeRule& rule) {
    return spec.tokens[static_cast<std::size_t>(rule.right)].starts_with(mark) &&
           !spec.tokens[static_cast<std::size_t>(rule.left)].ends_with(mark);
  });
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

// Whether it stands for one byte of a character that is no token.
bool is_byte_token(const TokenizerSpec& spec, const std::string& token) {
  return spec.alphabet == Alphabet::kCharacters && byte_of_token(token) >= 0;
}

// Whether each token of a word says which bytes of it it stands for.
bool merges_blocks(const TokenizerSpec& spec) {
  if (spec.unk && !missing_bytes(spec).empty()) {
    return false;
  }
  const bool are_bytes_alone = std::ranges::none_of(spec.merges, [&](const MergeRule& rule) {
    return is_byte_token(spec, spec.tokens[static_cast<std::size_t>(rule.result)]);
  });
  return spec.alphabet == Alphabet::kBytes || (spec.byte_fallback && are_bytes_alone);
}

}  // namespace

// One call of encode().
class BpeTokenizer::Pass {
 public:
  Pass(const BpeTokenizer& tokenizer, std::vector<std::int32_t>& out, const Flush* flush)
      : tokenizer_(tokenizer), loan_(tokenizer.caches_.take()), out_(out), flush_(flush) {}

  ~Pass() { tokenizer_.caches_.give_back(loan_); }

  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  void run(std::string_view text, const Finders& added, bool continues) {
    whole_ = text;
    const auto push = [this](std::int32_t id) { out_.push_back(id); };
    cut_at_added(
        added.raw,
        text,
        [&](std::string_view stretch, std::size_t begin) {
          for_each_part(stretch,
                        begin_of(stretch, continues && begin == 0),
                        tokenizer_.part_rule_,
                        [&](std::string_view part, PartBegin at) {
                          const bool is_first = begin == 0 && at == PartBegin::kText;
                          add_part(part, at, is_first, added.normalized);
                        });
        },
        push);
  }

 private:
  // Text without added tokens that are looked for in it as it is; `is_first` if the whole text
  // begins with it.
  void add_part(std::string_view text,
                PartBegin part,
                bool is_first,
                const AddedTokenFinder& added) {
    std::string valid_memory;
    std::string normalized_memory;
    if (tokenizer_.spec_.alphabet == Alphabet::kCharacters) {
      text = valid_utf8(text, valid_memory);
    }
    const Normalizer& normalizer =
        part == PartBegin::kText ? tokenizer_.normalizer_ : tokenizer_.rest_normalizer_;
    cut_at_added(
        added,
        normalizer.run(text, normalized_memory),
        [&](std::string_view words, std::size_t begin) {
          add_words(words, is_first && begin == 0, part == PartBegin::kWord && begin == 0);
        },
        [this](std::int32_t id) { out_.push_back(id); });
  }

  // Text without added tokens; `is_first` if the whole text begins with it, `goes_on` if it does in
  // a word.
  void add_words(std::string_view text, bool is_first, bool goes_on) {
    if (tokenizer_.spec_.alphabet == Alphabet::kBytes) {
      const char* end = text.data() + text.size();
      tokenizer_.pre_tokenizer_.split(text, [&](std::string_view word) { add_word(word, end); });
      return;
    }
    std::string memory;
    if (!text.empty() && tokenizer_.spec_.metaspace) {
      memory = with_metaspace(*tokenizer_.spec_.metaspace, text, is_first, goes_on);
      text = memory;
    }
    tokenizer_.pre_tokenizer_.split(text, [&](std::string_view piece) { cut_at_marks(piece); });
  }

  static std::string with_metaspace(const Metaspace& metaspace,
                                    std::string_view text,
                                    bool is_first,
                                    bool goes_on) {
    std::string result = replace_all(text, " ", metaspace.replacement);
    const bool prepends =
        !goes_on && (metaspace.prepend == Metaspace::Prepend::kAlways ||
                     (metaspace.prepend == Metaspace::Prepend::kFirst && is_first));
    return prepends && !result.starts_with(metaspace.replacement) ? metaspace.replacement + result
                                                                  : result;
  }

  void cut_at_marks(std::string_view text) {
    const WordMark& mark = tokenizer_.mark_;
    const char* end = text.data() + text.size();
    std::size_t begin = 0;
    std::size_t at = mark.text.empty() ? std::string_view::npos : text.find(mark.text);
    while (at != std::string_view::npos) {
      const bool starts_word = mark.each || !text.substr(begin, at - begin).ends_with(mark.text);
      if (at > begin && starts_word) {
        add_word(text.substr(begin, at - begin), end);
        begin = at;
      }
      at = text.find(mark.text, at + mark.text.size());
    }
    if (begin < text.size()) {
      add_word(text.substr(begin), end);
    }
  }

  // Bytes up to `text_end` may be read.
  void add_word(std::string_view word, const char* text_end) {
    if (flush_ != nullptr && out_.size() >= kPartTokens) [[unlikely]] {
      (*flush_)(out_);
    }
    const BpeModel& model = tokenizer_.model_;
    if (word.size() > WordCache::kMaxWordBytes) {
      add_long_word(word);
      return;
    }
    const WordCache::Key key = WordCache::key_of(word, text_end);
    WordCache::Entry& place = cache_.place_of(key);
    if (place.key == key) [[likely]] {
      out_.insert(out_.end(), place.ids.begin(), place.ids.begin() + place.num_ids);
      return;
    }
    require_bytes(word);
    const std::size_t before = out_.size();
    model.encode_word(word, scratch_, out_);
    WordCache::store(place, key, std::span(out_).subspan(before));
  }

  // Its place is that in the text, unless a normalizer wrote it anew.
  void require_bytes(std::string_view word) const {
    const std::size_t missing = tokenizer_.model_.find_missing(word);
    if (missing == std::string_view::npos) [[likely]] {
      return;
    }
    const char* const at = word.data() + missing;
    const bool is_of_text =
        std::less_equal<>()(whole_.data(), at) && std::less<>()(at, whole_.data() + whole_.size());
    fail(ErrorCode::kInvalidData,
         "{} is 0x{:02X}, which no token stands for: the tokenizer lacks {} and has no unknown "
         "token",
         is_of_text ? format("byte {} of the text", at - whole_.data() + 1)
                    : "a byte of the normalized text",
         static_cast<unsigned char>(word[missing]),
         describe_bytes(tokenizer_.missing_bytes_));
  }

  // In blocks: what the merges take is many times the word.
  void add_long_word(std::string_view word) {
    require_bytes(word);
    std::size_t size = tokenizer_.merges_blocks_ ? block_of(word).size() : word.size();
    if (size == word.size()) {
      tokenizer_.model_.encode_word(word, scratch_, out_);
      return;
    }
    merge_block(word.substr(0, size), block_);
    while (size < word.size()) {
      const std::size_t kept = find_block_end(word, size);
      if (kept == 0) {
        size = block_of(word, 2 * size).size();
        merge_block(word.substr(0, size), block_);
        continue;
      }
      for (const std::int32_t id : std::span(block_).first(kept)) {
        out_.push_back(id);
        word.remove_prefix(bytes_of(id));
      }
      if (flush_ != nullptr && out_.size() >= kPartTokens) {
        (*flush_)(out_);
      }
      size = block_of(word).size();
      block_.swap(next_block_);
    }
    out_.insert(out_.end(), block_.begin(), block_.end());
  }

  // How many tokens of block_, which are those of the first `size` bytes, stay when the word goes
  // on, with next_block_ behind them; 0 where none is known to. Each token is what its own bytes
  // become whatever is beside them, and every pair of neighbours what the bytes of both do, as in
  // the tokens of the whole: were two of them merged there at any step, so they would be at the
  // same step of the merges of their bytes alone, since other tokens' merges do not touch them.
  std::size_t find_block_end(std::string_view word, std::size_t size) {
    constexpr std::size_t kUnsure = 4;  // the last tokens, which would often become others
    constexpr std::size_t kMaxTries = 64;
    const std::size_t fewest = block_.size() - std::min(block_.size(), kUnsure + kMaxTries);
    std::size_t end = size;
    for (std::size_t kept = block_.size(); kept-- > std::max<std::size_t>(fewest, 1);) {
      end -= bytes_of(block_[kept]);
      const std::size_t begin = end - bytes_of(block_[kept - 1]);
      if (kept + kUnsure > block_.size() || !ends_character(word, end) ||
          !ends_character(word, begin)) {
        continue;
      }
      merge_block(block_of(word.substr(end)), next_block_);
      const std::size_t behind = end + bytes_of(next_block_.front());
      if (!ends_character(word, behind)) {
        continue;
      }
      merge_block(word.substr(begin, behind - begin), pair_);
      if (pair_.size() == 2 && pair_.front() == block_[kept - 1] &&
          pair_.back() == next_block_.front()) {
        return kept;
      }
    }
    return 0;
  }

  // Whether no character of a word of characters is cut before byte `at`.
  bool ends_character(std::string_view word, std::size_t at) const {
    constexpr unsigned kKind = 0xC0;
    constexpr unsigned kContinuation = 0x80;
    return tokenizer_.spec_.alphabet == Alphabet::kBytes || at >= word.size() ||
           (static_cast<unsigned char>(word[at]) & kKind) != kContinuation;
  }

  std::string_view block_of(std::string_view word, std::size_t bytes = kPartBytes) const {
    std::size_t end = std::min(bytes, word.size());
    while (!ends_character(word, end)) {
      --end;
    }
    return word.substr(0, end);
  }

  void merge_block(std::string_view bytes, std::vector<std::int32_t>& ids) {
    ids.clear();
    tokenizer_.model_.merge_word(bytes, scratch_, ids);
  }

  // Of what a token stands for in a word.
  std::size_t bytes_of(std::int32_t id) const {
    const std::string& token = tokenizer_.spec_.tokens[static_cast<std::size_t>(id)];
    return is_byte_token(tokenizer_.spec_, token) ? 1 : token.size();
  }

  const BpeTokenizer& tokenizer_;
  WordCaches::Loan loan_;
  WordCache& cache_ = loan_.front();
  BpeModel::Scratch scratch_;
  std::vector<std::int32_t> block_, next_block_, pair_;  // of a long word
  std::vector<std::int32_t>& out_;
  const Flush* flush_;
  std::string_view whole_;  // the text
};

BpeTokenizer::Finders::Finders(const TokenizerSpec& spec,
                               const Normalizer& normalizer,
                               bool with_special)
    : raw(entries(spec, with_special, nullptr)),
      normalized(entries(spec, with_special, &normalizer)) {}

BpeTokenizer::WordMark BpeTokenizer::word_mark(const TokenizerSpec& spec) {
  if (spec.metaspace && spec.metaspace->split) {
    return {.text = spec.metaspace->replacement, .each = true};
  }
  const std::string mark = mark_of_spaces(spec);
  return merges_stop_before(spec, mark) ? WordMark{.text = mark} : WordMark{};
}

BpeTokenizer::BpeTokenizer(TokenizerSpec spec)
    : spec_(checked(std::move(spec))),
      normalizer_(spec_.normalizer),
      rest_normalizer_(steps_without_prepend(spec_.normalizer)),
      pre_tokenizer_(active_splits(spec_)),
      model_(spec_),
      missing_bytes_(missing_bytes(spec_)),
      mark_(word_mark(spec_)),
      plain_added_(spec_, normalizer_, false),
      all_added_(spec_, normalizer_, true),
      special_(spec_.tokens.size()),
      cuts_lines_(may_cut_text(spec_)),
      merges_blocks_(merges_blocks(spec_)),
      part_rule_(make_part_rule()),
      finds_cuts_(cuts_lines_ || std::ranges::none_of(spec_.added, [](const AddedToken& token) {
                    return !token.normalized && !token.special &&
                           (spans_words(token.content) || token.rule.single_word);
                  })) {
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

bool BpeTokenizer::may_part() const {
  // Where words begin with the mark no merge reaches over a cut; an added token must not either.
  return spec_.alphabet == Alphabet::kCharacters && mark_.text == kSpaceSymbol &&
         active_splits(spec_).empty() && std::ranges::all_of(spec_.normalizer, keeps_words_apart) &&
         std::ranges::none_of(spec_.added, [&](const AddedToken& token) {
           std::string memory;
           return token.normalized &&
                  (spans_words(normalizer_.run(token.content, memory)) || token.rule.single_word);
         });
}

PartRule BpeTokenizer::make_part_rule() const {
  if (!may_part()) {
    return {};
  }
  PartRule rule{.bytes = kPartBytes, .most = std::size_t{16} << 20U};
  Joints& joints = rule.joints;
  for (const std::string& token : spec_.tokens) {
    joints.add(token);
  }
  if (spec_.byte_fallback && missing_bytes_.empty()) {
    joints.fall_back_to_bytes();
  }
  std::string memory;
  for (const AddedToken& token : spec_.added) {
    joints.add(token.normalized ? normalizer_.run(token.content, memory) : token.content);
    joints.add_end(token.content);
  }
  return rule;
}

std::int32_t BpeTokenizer::vocab_size() const {
  return static_cast<std::int32_t>(spec_.tokens.size());
}

void BpeTokenizer::encode(std::string_view text,
                          EncodeOptions options,
                          std::vector<std::int32_t>& out,
                          const Flush* flush) const {
  Pass(*this, out, flush)
      .run(text, options.parse_special ? all_added_ : plain_added_, options.continues);
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
  return spec_.alphabet == Alphabet::kBytes && spec_.normalizer.empty() && missing_bytes_.empty() &&
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
