#include "tessera/data/document_writer.h"

#include <cstddef>
#include <exception>

#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera {
namespace {

// Tokens of a spooled text after which its pages are given back.
constexpr std::size_t kReleaseTokens = std::size_t{1} << 20U;

// Of messages of conversations.
std::string describe_unknown(const std::set<std::string>& keys,
                             std::span<const std::filesystem::path> files) {
  constexpr std::size_t kMost = 8;
  std::string names;
  std::size_t count = 0;
  for (const std::string& key : keys) {
    if (count == kMost) {
      names += format(" and {} more", keys.size() - count);
      break;
    }
    names += format("{}\"{}\"", count == 0 ? "" : ", ", key);
    ++count;
  }
  return format("{}{}: messages have keys that are not known and have no effect: {}",
                files.front().string(),
                files.size() > 1 ? format(" and {} more", files.size() - 1) : "",
                names);
}

}  // namespace

DocumentWriter::DocumentWriter(std::span<const std::filesystem::path> files,
                               const TextEncoder& encoder,
                               const TextOptions& options,
                               const ReadState& start,
                               DocumentSink& sink)
    : files_(files), encoder_(encoder), options_(options), sink_(sink), state_(start) {}

void DocumentWriter::write(EncodedStretch encoded) {
  rethrow_error(encoded);
  report_broken(encoded);
  unknown_keys_.merge(encoded.unknown_keys);
  const Stretch& stretch = encoded.source;
  if (stretch.spool) {
    write_spooled(encoded);
  }
  write_pieces(encoded);
  state_.document_open = !stretch.closes;
  state_.lines += encoded.num_lines;
  state_.file_documents += encoded.num_documents;
  state_.offset = stretch.end_offset;
  state_.input_bytes = stretch.input_bytes;
  if (stretch.ends_file) {
    end_file();
  }
  sink_.reached(state_);
}

void DocumentWriter::warn_of_unknown_keys() const {
  if (!unknown_keys_.empty()) {
    log_warning(describe_unknown(unknown_keys_, files_));
  }
}

void DocumentWriter::rethrow_error(const EncodedStretch& encoded) const {
  if (encoded.error && encoded.failed_at) {
    with_context([&] { return "in " + place_of_text(encoded, *encoded.failed_at); },
                 [&] { std::rethrow_exception(encoded.error); });
  }
  if (encoded.error) {
    std::rethrow_exception(encoded.error);
  }
}

void DocumentWriter::write_pieces(const EncodedStretch& encoded) {
  std::size_t begin = 0;
  for (const EncodedPiece& piece : encoded.pieces) {
    append(std::span(encoded.tokens).subspan(begin, piece.end - begin));
    begin = piece.end;
    if (piece.closes) {
      end_document();
    }
  }
}

// A text without a place to cut is encoded in the order of the documents, its tokens written as
// they come.
void DocumentWriter::write_spooled(const EncodedStretch& encoded) {
  const Stretch& stretch = encoded.source;
  if (stretch.opens && options_.add_bos) {
    append(encoder_.before);
  }
  std::size_t held = 0;
  with_context([&] { return "in " + place_of_text(encoded, state_.offset); },
               [&] {
                 encoder_.encode(
                     stretch.text(), !stretch.opens, [&](std::span<const std::int32_t> tokens) {
                       append(tokens);
                       held += tokens.size();
                       if (held >= kReleaseTokens) {
                         stretch.spool->release_pages();
                         held = 0;
                       }
                     });
               });
  if (stretch.closes) {
    if (options_.add_eos && encoder_.eos) {
      append({&*encoder_.eos, 1});
    }
    end_document();
    ++state_.file_documents;
  }
}

void DocumentWriter::append(std::span<const std::int32_t> tokens) {
  if (!tokens.empty()) {
    sink_.append(tokens);
    state_.open_tokens += static_cast<std::int64_t>(tokens.size());
  }
}

void DocumentWriter::end_document() {
  if (state_.open_tokens > 0) {
    sink_.end_document();
  }
  state_.open_tokens = 0;
}

std::string DocumentWriter::place(const EncodedStretch& encoded, std::int64_t line) const {
  return format("{}{}{}",
                files_[static_cast<std::size_t>(state_.file)].string(),
                encoded.source.joins_lines ? ": value " : ":",
                state_.lines + line + 1);
}

// Of what could not be encoded: a line from 0 of the stretch, or of plain text a byte of the
// file.
std::string DocumentWriter::place_of_text(const EncodedStretch& encoded, std::int64_t at) const {
  return format_of(options_, encoded.source.file) != TextFormat::kText
             ? place(encoded, at)
             : format("{}{}",
                      files_[static_cast<std::size_t>(state_.file)].string(),
                      at > 0 ? format(", in the text from its byte {} on", at + 1) : "");
}

void DocumentWriter::report_broken(const EncodedStretch& encoded) {
  for (const BrokenLine& broken : encoded.broken) {
    TESSERA_REQUIRE(options_.skip_broken,
                    ErrorCode::kInvalidData,
                    "{}: {} (with {} such lines are left out and counted)",
                    place(encoded, broken.line),
                    broken.problem,
                    options_.skip_setting);
    if (state_.num_skipped == 0) {
      state_.first_skipped = format("{}: {}", place(encoded, broken.line), broken.problem);
    }
    ++state_.num_skipped;
  }
}

void DocumentWriter::end_file() {
  const std::string name = files_[static_cast<std::size_t>(state_.file)].string();
  TESSERA_REQUIRE(state_.offset > 0, ErrorCode::kInvalidData, "{} is empty: expected text", name);
  TESSERA_REQUIRE(state_.file_documents > 0 || state_.num_skipped > 0,
                  ErrorCode::kInvalidData,
                  "{} holds {}: expected text",
                  name,
                  format_of(options_, static_cast<std::size_t>(state_.file)) == TextFormat::kText
                      ? "document separators only"
                      : "no documents");
  ++state_.file;
  state_.offset = 0;
  state_.lines = 0;
  state_.file_documents = 0;
}

}  // namespace tessera
