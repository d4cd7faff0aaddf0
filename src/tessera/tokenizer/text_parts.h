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

  // From now on capitals count as what a normalization changes.
  void fold_case() { folds_case_ = true; }

  // From now on a character that is no token becomes tokens for its bytes, whatever is beside it.
  void fall_back_to_bytes() { has_bytes_ = true; }

  // Whether a text may be cut before byte `at`, 0 < at < text.size(). Both characters, of printable
  // ASCII or Chinese ones, have tokens of their own, no normalization changes them or joins them to
  // what is beside them, and what follows joins neither.
  bool may_part(std::string_view text, std::size_t at) const;

 private:
  bool is_plain(char32_t c) const;

  bool is_alone(char32_t c) const { return has_bytes_ || alone_.contains(c); }

  std::unordered_set<char32_t> alone_;        // characters that are tokens
  std::unordered_set<std::uint64_t> joined_;  // pairs that stand side by side in one
  bool folds_case_ = false;
  bool has_bytes_ = false;
};

// What the text behind a cut does.
enum class PartBegin {
  kText,   // begins: there is no cut
  kSpace,  // begins with a space
  kWord,   // goes on in a word
};

struct PartCut {
  std::size_t at = 0;
  PartBegin begin = PartBegin::kText;
};

// Where tokenizers whose words begin with a visible space (SentencePiece's U+2581) may cut a text:
// in front of a space between two ASCII letters or digits, over which no normalization reaches, and
// at joints. At the text's end where there is no such place behind `from`.
PartCut find_part_cut(std::string_view text, std::size_t from, const Joints& joints);

// Calls part(text, begin) with the text in parts that begin there, or whole unless `may_cut`: what
// a tokenizer makes on the way is many times the text, and must not grow with a long document.
template <class Part>
void for_each_part(std::string_view text, bool may_cut, const Joints& joints, const Part& part) {
  constexpr std::size_t kPartBytes = std::size_t{16} << 10U;
  PartBegin begin = PartBegin::kText;
  while (may_cut && text.size() > kPartBytes) {
    const PartCut cut = find_part_cut(text, kPartBytes, joints);
    part(text.substr(0, cut.at), begin);
    text.remove_prefix(cut.at);
    begin = cut.begin;
  }
  if (begin == PartBegin::kText || !text.empty()) {
    part(text, begin);
  }
}

}  // namespace tessera
