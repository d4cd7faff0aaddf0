#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/data/encode_files.h"
#include "tessera/data/spool_file.h"
#include "tessera/data/text_stream.h"

namespace tessera {

// A piece of a file that can be encoded by itself: whole lines of JSONL or chat, or text that ends
// where a document does or where the encoder allows a cut.
struct Stretch {
  std::size_t file = 0;
  std::string bytes;
  // In place of `bytes`, where there are too many for memory: text of one document.
  std::unique_ptr<SpoolFile> spool;
  bool opens = true;             // its first byte begins a document
  bool closes = true;            // its last byte ends one (before a separator, if there is one)
  bool ends_file = false;        // nothing follows in the file
  bool is_too_long = false;      // in place of `bytes`: a line above the limit, passed over
  bool joins_lines = false;      // its lines are values that lie otherwise in the file
  std::int64_t end_offset = 0;   // behind it, in the unpacked bytes of the file
  std::int64_t input_bytes = 0;  // read of all files so far, as they lie on disk

  std::string_view text() const;
};

// How the file with this index is opened.
TextStreamOptions stream_options(const TextOptions& options, std::size_t file);

// Cuts files into stretches, from front to back.
class StretchReader {
 public:
  StretchReader(std::span<const std::filesystem::path> files,
                const TextOptions& options,
                const TextEncoder& encoder,
                const ReadState& start);

  // Nothing after the last. Errors: kInvalidData; kDeviceError where a spool finds no room.
  std::optional<Stretch> next();

 private:
  struct Cut {
    std::size_t size;
    bool closes;
  };

  bool is_text() const { return format_of(options_, file_) == TextFormat::kText; }

  void open_next();
  bool fill(std::size_t target);
  void take(Stretch& stretch, const Cut& cut);
  std::optional<Cut> find_cut() const;
  std::optional<Cut> find_line_end() const;
  std::optional<Cut> find_text_cut() const;
  void spool_until_cut(Stretch& stretch);
  void pass_line(Stretch& stretch);

  std::span<const std::filesystem::path> files_;
  const TextOptions& options_;
  const TextEncoder& encoder_;
  std::size_t file_;
  std::int64_t offset_;  // of the buffer's first byte
  bool document_open_;
  std::unique_ptr<TextStream> stream_;
  std::int64_t finished_bytes_ = 0;  // of the files before, as they lie on disk
  std::string buffer_;
  bool at_end_ = false;  // of the file: the buffer holds its rest
};

}  // namespace tessera
