#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "tessera/tokenizer/regex.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/utf8.h"

namespace tessera {

// Cuts text into pre-tokens: the matches of a pattern and the stretches between them. Bytes that
// are not valid UTF-8 stand apart: a run of them is one pre-token, and the valid text on each side
// is cut as if it were alone.
class PreTokenizer {
 public:
  // Errors: those of Regex.
  explicit PreTokenizer(std::string_view pattern) : piece_end_(scanner_of(pattern)) {
    if (piece_end_ == nullptr) {
      regex_.emplace(pattern);
    }
  }

  // Calls sink(std::string_view) with each pre-token, in order; none is empty, and together they
  // are `text`.
  template <class Sink>
  void split(std::string_view text, Sink&& sink) const {
    while (!text.empty()) {
      const std::size_t valid = valid_utf8_prefix(text);
      if (valid > 0) {
        split_valid(text.substr(0, valid), sink);
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

  // Null: none is written for the pattern.
  static PieceEnd scanner_of(std::string_view pattern) {
    return pattern == kGpt2Pattern     ? gpt2_piece_end
           : pattern == kLlama3Pattern ? llama3_piece_end
                                       : nullptr;
  }

  template <class Sink>
  void split_valid(std::string_view text, Sink&& sink) const {
    if (regex_) {
      Regex::Scan matches(*regex_, text);
      for (std::string_view piece = matches.next(); !piece.empty(); piece = matches.next()) {
        sink(piece);
      }
      return;
    }
    const char* at = text.data();
    const char* end = at + text.size();
    while (at < end) {
      const char* next = piece_end_(at, end);
      sink(std::string_view(at, next));
      at = next;
    }
  }

  PieceEnd piece_end_;
  std::optional<Regex> regex_;
};

}  // namespace tessera
