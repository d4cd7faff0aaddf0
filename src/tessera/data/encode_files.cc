#include "tessera/data/encode_files.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/threads.h"
#include "tessera/base/units.h"
#include "tessera/data/json_line.h"
#include "tessera/data/jsonl.h"
#include "tessera/data/stretch_reader.h"

namespace tessera {
namespace {

// Stretches that wait for one before them to be given, a thread.
constexpr std::size_t kWaitingPerThread = 8;

// Tokens of a spooled text after which its pages are given back.
constexpr std::size_t kReleaseTokens = std::size_t{1} << 20U;

// A part of a document.
struct Piece {
  std::string_view text;
  bool opens;
  bool closes;
};

struct EncodedPiece {
  std::size_t end;  // of its tokens, in those of the stretch
  bool closes;
};

struct BrokenLine {
  std::int64_t line;  // from 0, in the stretch
  std::string problem;
};

struct EncodedStretch {
  Stretch source;  // its bytes are gone, unless they are spooled
  std::vector<std::int32_t> tokens;
  std::vector<EncodedPiece> pieces;
  std::vector<BrokenLine> broken;
  std::set<std::string> unknown_keys;  // of conversations
  std::int64_t num_lines = 0;
  std::int64_t num_documents = 0;  // that were closed
  std::exception_ptr error;
  // Of an error of the encoder: the byte of the stretch, of JSONL and chat the line, from 0.
  std::optional<std::int64_t> failed_at;
};

// Memory that is used again for each line.
struct LineScratch {
  std::string text;
  std::vector<Message> messages;
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

// The threads take stretches from the reader in turn, encode them side by side, and give them to
// the sink in the order of the files; whoever has the next one gives it.
class Pipeline {
 public:
  Pipeline(std::span<const std::filesystem::path> files,
           const TextEncoder& encoder,
           const TextOptions& options,
           const ReadState& start,
           DocumentSink& sink)
      : files_(files),
        encoder_(encoder),
        options_(options),
        sink_(sink),
        reader_(files, options, encoder, start),
        state_(start) {}

  ReadState run() {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < options_.threads; ++i) {
      if (!start_thread(helpers, [this] { work(); })) {
        break;
      }
    }
    work();
    helpers.clear();
    if (error_) {
      std::rethrow_exception(error_);
    }
    if (!unknown_keys_.empty()) {
      log_warning(describe_unknown());
    }
    return state_;
  }

 private:
  struct Ticket {
    std::int64_t number;
    EncodedStretch encoded;  // its source, or the error of reading it
  };

  void work() {
    while (std::optional<Ticket> ticket = take()) {
      encode(ticket->encoded);
      if (!give(std::move(*ticket))) {
        return;
      }
    }
  }

  // The next stretch; nothing at the end, and once anything has failed.
  std::optional<Ticket> take() {
    const std::scoped_lock lock(reader_mutex_);
    if (reader_ended_) {
      return std::nullopt;
    }
    Ticket ticket{.number = num_taken_, .encoded = {}};
    try {
      std::optional<Stretch> stretch = reader_.next();
      if (!stretch) {
        reader_ended_ = true;
        return std::nullopt;
      }
      ticket.encoded.source = std::move(*stretch);
    } catch (...) {
      ticket.encoded.error = std::current_exception();
      reader_ended_ = true;
    }
    ++num_taken_;
    return ticket;
  }

  void encode(EncodedStretch& encoded) const {
    const Stretch& stretch = encoded.source;
    if (encoded.error || stretch.spool) {
      return;
    }
    if (stretch.is_too_long) {
      encoded.num_lines = 1;
      encoded.broken.push_back(
          {.line = 0,
           .problem = format("a line of more than {}, expected a document a line",
                             format_bytes(options_.line_limit))});
      return;
    }
    std::int64_t begin = 0;  // of the piece that is encoded
    try {
      if (format_of(options_, stretch.file) != TextFormat::kText) {
        encode_lines(encoded);
      } else {
        for_each_piece(stretch, options_.document_separator, [&](const Piece& piece) {
          begin = piece.text.empty() ? begin : piece.text.data() - stretch.bytes.data();
          encode_piece(piece, encoded);
        });
      }
    } catch (...) {
      encoded.error = std::current_exception();
      encoded.failed_at = format_of(options_, stretch.file) == TextFormat::kText
                              ? begin - std::ssize(stretch.bytes) + stretch.end_offset
                              : encoded.num_lines;
    }
    encoded.source.bytes = {};
  }

  void encode_lines(EncodedStretch& encoded) const {
    LineScratch scratch;
    const bool is_chat = format_of(options_, encoded.source.file) == TextFormat::kChat;
    for (std::string_view rest = encoded.source.bytes; !rest.empty(); ++encoded.num_lines) {
      const std::string_view line = take_line(rest);
      if (is_blank(line)) {
        continue;
      }
      std::string problem = is_chat ? encode_conversation(line, scratch, encoded)
                                    : encode_text(line, scratch, encoded);
      if (!problem.empty()) {
        problem = encoded.source.joins_lines ? as_of_value(std::move(problem)) : problem;
        encoded.broken.push_back({.line = encoded.num_lines, .problem = std::move(problem)});
      }
    }
  }

  // What is wrong with the line: nothing where its tokens were added.
  std::string encode_text(std::string_view line,
                          LineScratch& scratch,
                          EncodedStretch& encoded) const {
    std::string problem = parse_jsonl_line(line, options_.field, scratch.text);
    if (problem.empty() && !scratch.text.empty()) {
      encode_piece({.text = scratch.text, .opens = true, .closes = true}, encoded);
    }
    return problem;
  }

  std::string encode_conversation(std::string_view line,
                                  LineScratch& scratch,
                                  EncodedStretch& encoded) const {
    std::string problem = parse_conversation(line, scratch.messages, encoded.unknown_keys);
    if (problem.empty()) {
      encoder_.encode_conversation(scratch.messages, encoded.tokens);
      ++encoded.num_documents;
      encoded.pieces.push_back({.end = encoded.tokens.size(), .closes = true});
    }
    return problem;
  }

  void encode_piece(const Piece& piece, EncodedStretch& encoded) const {
    std::vector<std::int32_t>& tokens = encoded.tokens;
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
    encoded.num_documents += piece.closes ? 1 : 0;
    encoded.pieces.push_back({.end = tokens.size(), .closes = piece.closes});
  }

  // Gives the stretch and those that waited for it to the sink, or lets it wait; false once
  // anything has failed.
  bool give(Ticket ticket) {
    std::unique_lock lock(sink_mutex_);
    const std::size_t most = kWaitingPerThread * static_cast<std::size_t>(options_.threads);
    turn_.wait(lock,
               [&] { return error_ || ticket.number == num_given_ || waiting_.size() < most; });
    if (error_) {
      return false;
    }
    waiting_.emplace(ticket.number, std::move(ticket.encoded));
    try {
      for (auto first = waiting_.begin(); first != waiting_.end() && first->first == num_given_;
           first = waiting_.erase(first)) {
        write(first->second);
        ++num_given_;
      }
    } catch (...) {
      error_ = std::current_exception();
      const std::scoped_lock reader_lock(reader_mutex_);
      reader_ended_ = true;
    }
    turn_.notify_all();
    return !error_;
  }

  void write(EncodedStretch& encoded) {
    const Stretch& stretch = encoded.source;
    if (encoded.error && encoded.failed_at) {
      with_context([&] { return "in " + place_of_text(encoded, *encoded.failed_at); },
                   [&] { std::rethrow_exception(encoded.error); });
    }
    if (encoded.error) {
      std::rethrow_exception(encoded.error);
    }
    report_broken(encoded);
    unknown_keys_.merge(encoded.unknown_keys);
    if (stretch.spool) {
      write_spooled(encoded);
    }
    std::size_t begin = 0;
    for (const EncodedPiece& piece : encoded.pieces) {
      append(std::span(encoded.tokens).subspan(begin, piece.end - begin));
      begin = piece.end;
      if (piece.closes) {
        end_document();
      }
    }
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

  // A text without a place to cut is encoded in the order of the documents, its tokens written as
  // they come.
  void write_spooled(const EncodedStretch& encoded) {
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

  void append(std::span<const std::int32_t> tokens) {
    if (!tokens.empty()) {
      sink_.append(tokens);
      state_.open_tokens += static_cast<std::int64_t>(tokens.size());
    }
  }

  void end_document() {
    if (state_.open_tokens > 0) {
      sink_.end_document();
    }
    state_.open_tokens = 0;
  }

  std::string place(const EncodedStretch& encoded, std::int64_t line) const {
    return format("{}{}{}",
                  files_[static_cast<std::size_t>(state_.file)].string(),
                  encoded.source.joins_lines ? ": value " : ":",
                  state_.lines + line + 1);
  }

  // Of what could not be encoded: a line from 0 of the stretch, or of plain text a byte of the
  // file.
  std::string place_of_text(const EncodedStretch& encoded, std::int64_t at) const {
    return format_of(options_, encoded.source.file) != TextFormat::kText
               ? place(encoded, at)
               : format("{}{}",
                        files_[static_cast<std::size_t>(state_.file)].string(),
                        at > 0 ? format(", in the text from its byte {} on", at + 1) : "");
  }

  void report_broken(const EncodedStretch& encoded) {
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

  std::string describe_unknown() const {
    constexpr std::size_t kMost = 8;
    std::string names;
    std::size_t count = 0;
    for (const std::string& key : unknown_keys_) {
      if (count == kMost) {
        names += format(" and {} more", unknown_keys_.size() - count);
        break;
      }
      names += format("{}\"{}\"", count == 0 ? "" : ", ", key);
      ++count;
    }
    return format("{}{}: messages have keys that are not known and have no effect: {}",
                  files_.front().string(),
                  files_.size() > 1 ? format(" and {} more", files_.size() - 1) : "",
                  names);
  }

  void end_file() {
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

  std::span<const std::filesystem::path> files_;
  const TextEncoder& encoder_;
  const TextOptions& options_;
  DocumentSink& sink_;

  std::mutex reader_mutex_;  // taken last, where both are
  StretchReader reader_;
  std::int64_t num_taken_ = 0;
  bool reader_ended_ = false;

  std::mutex sink_mutex_;
  std::condition_variable turn_;
  std::map<std::int64_t, EncodedStretch> waiting_;
  std::int64_t num_given_ = 0;
  ReadState state_;
  std::set<std::string> unknown_keys_;
  std::exception_ptr error_;
};

// Calls body(stream, path) with each file: a bad last one must not cost the time of encoding all
// the others.
template <class Body>
void for_each_text(std::span<const std::filesystem::path> files,
                   const TextOptions& options,
                   const Body& body) {
  TESSERA_REQUIRE(
      !files.empty(), ErrorCode::kInvalidData, "no data files given: expected at least one");
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::filesystem::path& path = files[i];
    const TextStream stream(path, stream_options(options, i));
    std::error_code error;
    TESSERA_REQUIRE(std::filesystem::file_size(path, error) > 0,
                    ErrorCode::kInvalidData,
                    "{} is empty: expected text",
                    path.string());
    body(stream, path);
  }
}

}  // namespace

TextFormat format_of(const TextOptions& options, std::size_t file) {
  return options.formats.empty() ? options.format : options.formats[file];
}

void require_texts(std::span<const std::filesystem::path> files, const TextOptions& options) {
  for_each_text(files, options, [](const TextStream&, const std::filesystem::path&) {});
}

void introduce_texts(std::span<const std::filesystem::path> files, const TextOptions& options) {
  for_each_text(files, options, say_what_is_odd);
}

std::int64_t total_bytes(std::span<const std::filesystem::path> files) {
  std::int64_t total = 0;
  for (const std::filesystem::path& file : files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    total += error ? 0 : static_cast<std::int64_t>(size);
  }
  return total;
}

ReadState encode_files(std::span<const std::filesystem::path> files,
                       const TextEncoder& encoder,
                       const TextOptions& options,
                       const ReadState& start,
                       DocumentSink& sink) {
  TESSERA_REQUIRE(options.format != TextFormat::kChat || encoder.encode_conversation,
                  ErrorCode::kInvalidArgument,
                  "conversations without a chat template: expected an encoder with one");
  require_texts(files, options);
  return Pipeline(files, encoder, options, start, sink).run();
}

std::string describe_skipped(const ReadState& state) {
  return format("skipped {}, the first {}",
                format_plural(state.num_skipped, "broken line"),
                state.first_skipped);
}

}  // namespace tessera
