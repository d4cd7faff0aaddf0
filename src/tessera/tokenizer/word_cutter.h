#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Where a stretch of text without added tokens begins.
enum class StretchBegin {
  kText,     // where the whole text does
  kInWord,   // behind a cut, in a word
  kBetween,  // at a word, not the first of the text
};

// The character before which words made of characters begin, and whether each starts one: of a run
// otherwise only the first does.
struct WordMark {
  std::string text;  // empty: a text is one word
  bool each = false;
};

// Cuts normalized text without added tokens into words, each of which is merged by itself.
class WordCutter {
 public:
  // Errors: those of Regex.
  explicit WordCutter(const TokenizerSpec& spec);

  // Calls word(std::string_view, const char* end) with each word, in order; bytes up to `end` may
  // be read.
  template <class Word>
  void cut(std::string_view text, StretchBegin begin, const Word& word) const {
    if (alphabet_ == Alphabet::kBytes) {
      const char* end = text.data() + text.size();
      pre_tokenizer_.split(text, [&](std::string_view piece) { word(piece, end); });
      return;
    }
    std::string memory;
    if (!text.empty() && metaspace_) {
      memory = with_metaspace(text, begin);
      text = memory;
    }
    pre_tokenizer_.split(text, [&](std::string_view piece) { cut_at_marks(piece, word); });
  }

  // Whether words begin with U+2581, and nothing else cuts a text.
  bool cuts_at_space_symbol_alone() const;

 private:
  std::string with_metaspace(std::string_view text, StretchBegin begin) const;

  template <class Word>
  void cut_at_marks(std::string_view text, const Word& word) const {
    const char* end = text.data() + text.size();
    std::size_t begin = 0;
    std::size_t at = mark_.text.empty() ? std::string_view::npos : text.find(mark_.text);
    while (at != std::string_view::npos) {
      const bool starts_word = mark_.each || !text.substr(begin, at - begin).ends_with(mark_.text);
      if (at > begin && starts_word) {
        word(text.substr(begin, at - begin), end);
        begin = at;
      }
      at = text.find(mark_.text, at + mark_.text.size());
    }
    if (begin < text.size()) {
      word(text.substr(begin), end);
    }
  }

  Alphabet alphabet_;
  std::optional<Metaspace> metaspace_;
  PreTokenizer pre_tokenizer_;
  WordMark mark_;
};

}  // namespace tessera
