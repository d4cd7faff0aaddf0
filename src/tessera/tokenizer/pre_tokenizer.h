#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/utf8.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/regex.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Whether a split gives all text, each match of its pattern and nothing else a piece: its pattern
// is one of those that match at every place.
inline bool keeps_matches(const Split& split) {
  const bool is_known = split.pattern == kGpt2Pattern || split.pattern == kLlama3Pattern ||
                        split.pattern == kQwenPattern || split.pattern == kO200kPattern;
  return is_known && (split.behavior == SplitBehavior::kIsolated ||
                      (split.behavior == SplitBehavior::kRemoved && split.invert));
}

// Makes pieces of the stretches of a text, in order: calls sink(std::string_view) with each that is
// not empty. Text, as Hugging Face's NormalizedString::split() has it.
template <class Sink>
class PieceMaker {
 public:
  PieceMaker(const Split& split, std::string_view text, Sink& sink)
      : split_(split), text_(text), sink_(sink) {}

  void add(std::size_t begin, std::size_t end, bool matches) {
    const bool is_match = matches != split_.invert;
    if (split_.behavior == SplitBehavior::kRemoved) {
      give(begin, is_match ? begin : end);
    } else if (joins(is_match)) {
      end_ = end;
    } else {
      finish();
      begin_ = begin;
      end_ = end;
    }
    after_match_ = is_match;
    is_first_ = false;
  }

  void finish() { give(begin_, end_); }

 private:
  // Whether the next stretch is of the piece before it.
  bool joins(bool is_match) const {
    switch (split_.behavior) {
      case SplitBehavior::kIsolated:
      case SplitBehavior::kRemoved:
        return false;
      case SplitBehavior::kMergedWithPrevious:
        return !is_first_ && is_match && !after_match_;
      case SplitBehavior::kMergedWithNext:
        return !is_first_ && !is_match && after_match_;
      case SplitBehavior::kContiguous:
        return !is_first_ && is_match == after_match_;
    }
    return false;
  }

  void give(std::size_t begin, std::size_t end) {
    if (begin < end) {
      sink_(text_.substr(begin, end - begin));
    }
  }

  const Split& split_;
  std::string_view text_;
  Sink& sink_;
  std::size_t begin_ = 0;  // of the piece that is not given yet
  std::size_t end_ = 0;
  bool after_match_ = false;
  bool is_first_ = true;
};

// Cuts text into pre-tokens. Of several splits, each cuts the pieces of the one before it; without
// any, the text is one piece. Bytes that are not valid UTF-8 stand apart: a run of them is one
// pre-token, and the valid text on each side is cut as if it were alone.
class PreTokenizer {
 public:
  // Errors: those of Regex.
  explicit PreTokenizer(std::span<const Split> splits) {
    for (const Split& split : splits) {
      (split.in_byte_alphabet ? byte_cuts_ : cuts_).emplace_back(split);
    }
  }

  explicit PreTokenizer(const Split& split) : PreTokenizer(std::span(&split, 1)) {}

  // Whether each text without invalid bytes is one pre-token.
  bool empty() const { return cuts_.empty() && byte_cuts_.empty(); }

  // Calls sink(std::string_view) with each pre-token, in order; none is empty, and together they
  // are `text` without what splits remove.
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

  struct Cut {
    Split split;
    PieceEnd piece_end;  // null: none is written for the pattern
    std::optional<Regex> regex;

    explicit Cut(const Split& given) : split(given), piece_end(scanner_of(given)) {
      if (piece_end == nullptr) {
        regex.emplace(given.pattern);
      }
    }
  };

  static PieceEnd scanner_of(const Split& split) {
    return !keeps_matches(split)             ? nullptr
           : split.pattern == kGpt2Pattern   ? gpt2_piece_end
           : split.pattern == kLlama3Pattern ? llama3_piece_end
           : split.pattern == kQwenPattern   ? qwen_piece_end
                                             : nullptr;
  }

  template <class Sink>
  void split_valid(std::string_view text, Sink& sink) const {
    if (byte_cuts_.empty()) {
      apply(cuts_, text, sink);
    } else {
      const auto cut_bytes = [&](std::string_view piece) { split_bytes(piece, sink); };
      apply(cuts_, text, cut_bytes);
    }
  }

  // Of a text of which each byte is a character to the splits.
  template <class Sink>
  void split_bytes(std::string_view bytes, Sink& sink) const {
    const std::string visible = to_byte_level(bytes);
    std::size_t at = 0;  // a place in `visible`, and its byte
    std::size_t byte = 0;
    const auto characters = [&](std::size_t end) {
      std::size_t count = 0;
      for (; at < end; ++at) {
        constexpr unsigned kKind = 0xC0;
        constexpr unsigned kContinuation = 0x80;
        count += (static_cast<unsigned char>(visible[at]) & kKind) == kContinuation ? 0U : 1U;
      }
      return count;
    };
    const auto give = [&](std::string_view piece) {
      byte += characters(static_cast<std::size_t>(piece.data() - visible.data()));
      const std::size_t size = characters(at + piece.size());
      sink(bytes.substr(byte, size));
      byte += size;
    };
    apply(byte_cuts_, visible, give);
  }

  template <class Sink>
  static void apply(std::span<const Cut> cuts, std::string_view text, Sink& sink) {
    if (cuts.empty()) {
      sink(text);
    } else if (cuts.size() == 1) {  // the way of nearly all: nothing between cut and sink
      cut_pieces(cuts.front(), text, sink);
    } else {
      const auto rest = [&](std::string_view piece) { apply_rest(cuts, piece, sink); };
      cut_pieces(cuts.front(), text, rest);
    }
  }

  template <class Sink>
  static void apply_rest(std::span<const Cut> cuts, std::string_view piece, Sink& sink) {
    apply(cuts.subspan(1), piece, sink);
  }

  template <class Sink>
  static void cut_pieces(const Cut& cut, std::string_view text, Sink& sink) {
    if (cut.regex) {
      cut_by_regex(cut, text, sink);
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

  template <class Sink>
  static void cut_by_regex(const Cut& cut, std::string_view text, Sink& sink) {
    PieceMaker pieces(cut.split, text, sink);
    Regex::Scan matches(*cut.regex, text);
    std::size_t at = 0;
    while (const auto match = matches.next()) {
      if (at < match->begin) {
        pieces.add(at, match->begin, false);
      }
      pieces.add(match->begin, match->end, true);
      at = match->end;
    }
    if (at < text.size()) {
      pieces.add(at, text.size(), false);
    }
    pieces.finish();
  }

  std::vector<Cut> cuts_;
  std::vector<Cut> byte_cuts_;  // of the text in the byte-level alphabet, behind the others
};

}  // namespace tessera
