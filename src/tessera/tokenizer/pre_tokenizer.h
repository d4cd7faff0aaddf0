#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/utf8.h"
#include "tessera/tokenizer/regex.h"
#include "tessera/tokenizer/scanner.h"

namespace tessera {

// Cuts text into pre-tokens: the matches of a pattern and the stretches between them. Of several
// patterns, each cuts the pieces of the one before it; without any, the text is one piece. Bytes
// that are not valid UTF-8 stand apart: a run of them is one pre-token, and the valid text on each
// side is cut as if it were alone.
class PreTokenizer {
 public:
  // Errors: those of Regex.
  explicit PreTokenizer(std::span<const std::string> patterns) {
    for (const std::string& pattern : patterns) {
      cuts_.emplace_back(pattern);
    }
  }

  explicit PreTokenizer(std::string_view pattern) { cuts_.emplace_back(pattern); }

  // Calls sink(std::string_view) with each pre-token, in order; none is empty, and together they
  // are `text`.
  template <class Sink>
  void split(std::string_view text, Sink&& sink) const {
    while (!text.empty()) {
      const std::size_t valid = valid_utf8_prefix(text);
      if (valid > 0) {
        split_valid(text.substr(0, valid), 0, sink);
        text.remove_prefix(valid);
      }
      const std::size_t invalid = invalid_utf8_prefix(text);
      if (invalid > 0) {
        sink(text.substr(0, invalid));
        text.remove_prefix(invalid);
      }
    }
  }

 private:
  using PieceEnd = const char* (*)(const char* at, const char* end);

  struct Cut {
    PieceEnd piece_end;  // null: none is written for the pattern
    std::optional<Regex> regex;

    explicit Cut(std::string_view pattern) : piece_end(scanner_of(pattern)) {
      if (piece_end == nullptr) {
        regex.emplace(pattern);
      }
    }
  };

  static PieceEnd scanner_of(std::string_view pattern) {
    return pattern == kGpt2Pattern     ? gpt2_piece_end
           : pattern == kLlama3Pattern ? llama3_piece_end
           : pattern == kQwenPattern   ? qwen_piece_end
                                       : nullptr;
  }

  // Applies the patterns from `level` on.
  template <class Sink>
  void split_valid(std::string_view text, std::size_t level, Sink& sink) const {
    if (level >= cuts_.size()) {
      sink(text);
    } else if (level + 1 == cuts_.size()) {  // the way of nearly all: nothing between cut and sink
      cut_pieces(cuts_[level], text, sink);
    } else {
      cut_pieces(
          cuts_[level], text, [&](std::string_view piece) { split_valid(piece, level + 1, sink); });
    }
  }

  template <class Sink>
  static void cut_pieces(const Cut& cut, std::string_view text, Sink&& sink) {
    if (cut.regex) {
      Regex::Scan matches(*cut.regex, text);
      for (std::string_view piece = matches.next(); !piece.empty(); piece = matches.next()) {
        sink(piece);
      }
      return;
    }
    const char* at = text.data();
    const char* end = at + text.size();
    while (at < end) {
      const char* next = cut.piece_end(at, end);
      sink(std::string_view(at, next));
      at = next;
    }
  }

  std::vector<Cut> cuts_;
};

}  // namespace tessera
