#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/byte_stream.h"
#include "tessera/data/conversation.h"

namespace tessera {

using TokenSink = std::function<void(std::span<const std::int32_t> tokens)>;

// What the data needs of a tokenizer. `encode` gives the tokens of `text`, which begins a document
// unless it `continues` one, to `sink` part by part. It is called from several threads at once, and
// takes any bytes: what is not valid UTF-8 is its to encode as bytes.
struct TextEncoder {
  std::function<void(std::string_view text, bool continues, const TokenSink& sink)> encode;
  // A place, not behind byte `most` and in front of the text's end, at which a document may be cut:
  // the tokens of its two parts, those of the second encoded with `continues`, are those of the
  // whole. 0: there is none; null: there never is. Then a long document is encoded by one thread.
  // At most 8 bytes around a place decide about it.
  std::function<std::size_t(std::string_view text, std::size_t most)> find_cut = nullptr;
  std::vector<std::int32_t> before = {};  // what stands before a document, BOS mostly
  std::optional<std::int32_t> eos = {};   // what stands after it
  // Appends the tokens of a conversation as a chat template has them, those that are trained marked
  // (as_trained()). Called like `encode`. Only for TextFormat::kChat.
  std::function<void(std::span<const Message> messages, std::vector<std::int32_t>& tokens)>
      encode_conversation = nullptr;
};

enum class TextFormat { kText, kJsonl, kChat };

struct TextOptions {
  TextFormat format = TextFormat::kText;
  std::vector<TextFormat> formats = {};  // of each file, where they differ
  std::string document_separator = {};   // of text; empty: one file is one document
  std::string field = "text";            // of JSONL: the key of the text
  bool skip_broken = false;  // of JSONL and chat: leave lines out that are not what they should be
  std::string skip_setting = "data.skip_broken";      // its name, for messages
  std::int64_t unpacked_limit = kUnpackedLimitBytes;  // of each compressed file
  std::int64_t line_limit = std::int64_t{64} << 20U;  // bytes of a line of JSONL
  bool add_bos = true;                                // what the encoder has before a document
  bool add_eos = true;
  int threads = 1;
  // Where large stretches of text lie that cannot be cut, in a file without a name.
  std::filesystem::path scratch = std::filesystem::temp_directory_path();
};

// Of the file with this index.
TextFormat format_of(const TextOptions& options, std::size_t file);

// How far the files are read and encoded: reading may go on from here, in another process too.
struct ReadState {
  std::int64_t file = 0;            // index
  std::int64_t offset = 0;          // in its unpacked bytes
  bool document_open = false;       // the bytes before `offset` end inside a document
  std::int64_t open_tokens = 0;     // of that document, already given
  std::int64_t lines = 0;           // of JSONL: in the file, before `offset`
  std::int64_t file_documents = 0;  // that the file has given
  std::int64_t num_skipped = 0;     // lines
  std::string first_skipped = {};   // place and reason
  std::int64_t input_bytes = 0;     // read of all files, as they lie on disk

  bool operator==(const ReadState&) const = default;
};

// Takes the documents in order, from one thread at a time.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual void append(std::span<const std::int32_t> tokens) = 0;
  // All tokens since the document before are one; there is at least one.
  virtual void end_document() = 0;

  // Everything up to `state` has been given.
  virtual void reached(const ReadState& /*state*/) {}
};

// Errors: kInvalidData where there is no file, or one is missing, unreadable or empty, or no text
// but a container that is known (a Parquet file, an archive).
void require_texts(std::span<const std::filesystem::path> files, const TextOptions& options);

// The same, and says what is odd about a file: that it is UTF-16, or hardly text.
void introduce_texts(std::span<const std::filesystem::path> files, const TextOptions& options);

// Of the files as they lie on disk; a missing one counts as empty.
std::int64_t total_bytes(std::span<const std::filesystem::path> files);

// Reads `files` from `start` on, encodes them on options.threads threads and gives the documents to
// `sink`. A document is what the encoder has before one, its tokens, EOS, or what
// encode_conversation makes of it; empty ones are dropped. What the sink gets depends neither on
// threads nor on where a run before it stopped, and memory not on the size of the files: some MiB a
// thread. Returns the state at the end. Errors: kInvalidData naming the file and the reason
// (missing, unreadable, empty, no text), in JSONL and chat FILE:LINE; kDeviceError where `scratch`
// is full. The error is that of the first bad place.
ReadState encode_files(std::span<const std::filesystem::path> files,
                       const TextEncoder& encoder,
                       const TextOptions& options,
                       const ReadState& start,
                       DocumentSink& sink);

// "skipped 3 broken lines, the first a.jsonl:7: ..".
std::string describe_skipped(const ReadState& state);

}  // namespace tessera
