#include "tessera/data/encode_stretch.h"

#include <span>
#include <string_view>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/data/conversation.h"
#include "tessera/data/json_line.h"
#include "tessera/data/jsonl.h"

namespace tessera {
namespace {

// A part of a document, as text.
struct Piece {
  std::string_view text;
  bool opens;
  bool closes;
};

// Calls body(piece) with the parts of documents of a stretch of text.
template <class Body>
void for_each_piece(const Stretch& stretch, std::string_view separator, const Body& body) {
  std::string_view rest = stretch.text();
  bool opens = stretch.opens;
  while (!separator.empty()) {
    const std::size_t at = rest.find(separator);
    if (at == std::string_view::npos) {
      break;
    }
    if (at > 0 || !opens) {
      body(Piece{.text = rest.substr(0, at), .opens = opens, .closes = true});
    }
    rest.remove_prefix(at + separator.size());
    opens = true;
  }
  if (!rest.empty() || !opens) {
    body(Piece{.text = rest, .opens = opens, .closes = stretch.closes});
  }
}

// One stretch.
class StretchEncoding {
 public:
  StretchEncoding(Stretch stretch, const TextEncoder& encoder, const TextOptions& options)
      : encoder_(encoder), options_(options), format_(format_of(options, stretch.file)) {
    encoded_.source = std::move(stretch);
  }

  EncodedStretch run() {
    const Stretch& stretch = encoded_.source;
    if (stretch.is_too_long) {
      encoded_.num_lines = 1;
      encoded_.broken.push_back(
          {.line = 0,
           .problem = format("a line of more than {}, expected a document a line",
                             format_bytes(options_.line_limit))});
    } else if (!stretch.spool) {
      encode();
      encoded_.source.bytes = {};
    }
    return std::move(encoded_);
  }

 private:
  void encode() {
    const Stretch& stretch = encoded_.source;
    std::int64_t begin = 0;  // of the piece that is encoded
    try {
      if (format_ != TextFormat::kText) {
        encode_lines();
      } else {
        for_each_piece(stretch, options_.document_separator, [&](const Piece& piece) {
          begin = piece.text.empty() ? begin : piece.text.data() - stretch.bytes.data();
          encode_piece(piece);
        });
      }
    } catch (...) {
      encoded_.error = std::current_exception();
      encoded_.failed_at = format_ == TextFormat::kText
                               ? begin - std::ssize(stretch.bytes) + stretch.end_offset
                               : encoded_.num_lines;
    }
  }

  void encode_lines() {
    for (std::string_view rest = encoded_.source.bytes; !rest.empty(); ++encoded_.num_lines) {
      const std::string_view line = take_line(rest);
      if (is_blank(line)) {
        continue;
      }
      std::string problem =
          format_ == TextFormat::kChat ? encode_conversation(line) : encode_text(line);
      if (!problem.empty()) {
        problem = encoded_.source.joins_lines ? as_of_value(std::move(problem)) : problem;
        encoded_.broken.push_back({.line = encoded_.num_lines, .problem = std::move(problem)});
      }
    }
  }

  // What is wrong with the line: nothing where its tokens were added.
  std::string encode_text(std::string_view line) {
    std::string problem = parse_jsonl_line(line, options_.field, text_);
    if (problem.empty() && !text_.empty()) {
      encode_piece({.text = text_, .opens = true, .closes = true});
    }
    return problem;
  }

  std::string encode_conversation(std::string_view line) {
    std::string problem = parse_conversation(line, messages_, encoded_.unknown_keys);
    if (problem.empty()) {
      encoder_.encode_conversation(messages_, encoded_.tokens);
      ++encoded_.num_documents;
      encoded_.pieces.push_back({.end = encoded_.tokens.size(), .closes = true});
    }
    return problem;
  }

  void encode_piece(const Piece& piece) {
    std::vector<std::int32_t>& tokens = encoded_.tokens;
    if (piece.opens && options_.add_bos) {
      tokens.insert(tokens.end(), encoder_.before.begin(), encoder_.before.end());
    }
    if (!piece.text.empty()) {
      encoder_.encode(piece.text, !piece.opens, [&](std::span<const std::int32_t> part) {
        tokens.insert(tokens.end(), part.begin(), part.end());
      });
    }
    if (piece.closes && options_.add_eos && encoder_.eos) {
      tokens.push_back(*encoder_.eos);
    }
    encoded_.num_documents += piece.closes ? 1 : 0;
    encoded_.pieces.push_back({.end = tokens.size(), .closes = piece.closes});
  }

  const TextEncoder& encoder_;
  const TextOptions& options_;
  TextFormat format_;
  EncodedStretch encoded_;
  std::string text_;  // memory that is used again for each line
  std::vector<Message> messages_;
};

}  // namespace

EncodedStretch encode_stretch(Stretch stretch,
                              const TextEncoder& encoder,
                              const TextOptions& options) {
  return StretchEncoding(std::move(stretch), encoder, options).run();
}

}  // namespace tessera
