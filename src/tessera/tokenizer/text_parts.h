#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_set>

namespace tessera {

// What stands for a space in SentencePiece's tokens: U+2581.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

// Whether a token has a space, or what stands for it, behind anything else.
inline bool spans_words(std::string_view token) {
  bool is_leading = true;
  while (!token.empty()) {
    const bool is_symbol = token.starts_with(kSpaceSymbol);
    const bool is_space = is_symbol || token.front() == ' ';
    if (is_space && !is_leading) {
      return true;
    }
    is_leading = is_space;
    token.remove_prefix(is_symbol ? kSpaceSymbol.size() : 1);
  }
  return false;
}

// Places inside words where no token of a vocabulary reaches over: between two characters that no
// token has side by side.
class Joints {
 public:
  // Notes a token, or what is looked for like one.
  void add(std::string_view token);

  // Behind this, which is looked for before all else, a text begins anew: no place there counts.
  void add_end(std::string_view token);

  // From now on capitals count as what a normalization changes.
  void fold_case() { folds_case_ = true; }

  // From now on a character that is no token becomes tokens for its bytes, whatever is beside it.
  void fall_back_to_bytes() { has_bytes_ = true; }

  // From now on every place between two Chinese characters counts, whatever tokens have both.
  void part_chinese() { parts_chinese_ = true; }

  // Whether a text may be cut before byte `at`, 0 < at < text.size(), in a word. Both characters,
  // of printable ASCII or Chinese ones, have tokens of their own, no normalization changes them or
  // joins them to what is beside them, and what follows joins neither.
  bool may_part(std::string_view text, std::size_t at) const;

  // Whether a text that ends with this character, which is no space, may be cut behind it.
  bool may_end(char32_t last) const { return !ends_.contains(last); }

 private:
  bool is_plain(char32_t c) const;

  bool is_alone(char32_t c) const { return has_bytes_ || alone_.contains(c); }

  bool are_apart(char32_t left, char32_t right) const;

  std::unordered_set<char32_t> alone_;        // characters that are tokens
  std::unordered_set<std::uint64_t> joined_;  // pairs that stand side by side in one
  std::unordered_set<char32_t> ends_;
  bool folds_case_ = false;
  bool has_bytes_ = false;
  bool parts_chinese_ = false;
};

// Of a text that is cut where nothing changes.
inline constexpr std::size_t kPartBytes = std::size_t{16} << 10U;

// How a text begins.
enum class PartBegin {
  kText,   // there is no cut
  kSpace,  // behind a cut, with a space
  kWord,   // behind a cut, in a word
};

inline PartBegin begin_of(std::string_view text, bool continues) {
  return !continues              ? PartBegin::kText
         : text.starts_with(' ') ? PartBegin::kSpace
                                 : PartBegin::kWord;
}

// Where tokenizers whose words begin with a visible space (SentencePiece's U+2581) may cut a text:
// in front of a space between two ASCII letters or digits, over which no normalization reaches, and
// at joints.
bool is_part_cut(std::string_view text, std::size_t at, const Joints& joints);

// The first such place from `from` on; where there is none before `most`, that, or the beginning of
// the character that is there. At most the text's end.
std::size_t first_part_cut(std::string_view text,
                           std::size_t from,
                           std::size_t most,
                           const Joints& joints);

// How a tokenizer cuts long texts: what it makes on the way is many times the text, and must not
// grow with a document.
struct PartRule {
  std::size_t bytes = 0;  // after which a part ends at the next place; 0: texts are whole
  // After which it ends between any two characters, so that a text without places does not take all
  // memory: there tokens may be others than those of the whole.
  std::size_t most = std::string_view::npos;
  // Whether tokens are the same wherever it is cut. Otherwise the parts are as this rule says.
  bool is_exact = true;
  Joints joints = {};

  // The place of TextEncoder::find_cut.
  std::size_t find_cut(std::string_view text, std::size_t limit) const;
};

// Calls part(text, begin) with the text in parts.
template <class Part>
void for_each_part(std::string_view text, PartBegin begin, const PartRule& rule, const Part& part) {
  while (rule.bytes > 0 && text.size() > rule.bytes) {
    const std::size_t cut = first_part_cut(text, rule.bytes, rule.most, rule.joints);
    part(text.substr(0, cut), begin);
    text.remove_prefix(cut);
    begin = begin_of(text, true);
  }
  if (begin == PartBegin::kText || !text.empty()) {
    part(text, begin);
  }
}

}  // namespace tessera
