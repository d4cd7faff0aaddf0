#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "tessera/base/text_encoding.h"
#include "tessera/data/byte_stream.h"
#include "tessera/data/json_line.h"

namespace tessera {

struct TextStreamOptions {
  bool holds_json = false;  // a value a line is expected
  std::int64_t unpacked_limit = kUnpackedLimitBytes;
};

// A text file from front to back: unpacked, as UTF-8 where it is UTF-16 or UTF-32, and, of JSON, a
// value a line where it is one list or its values go on over several lines. Memory does not grow
// with the file.
class TextStream {
 public:
  // Errors: as ByteStream; kInvalidData naming what the file is where it is no text but a container
  // that is known (a Parquet file, an archive).
  TextStream(const std::filesystem::path& path, const TextStreamOptions& options);

  // As ByteStream's, of the text.
  std::size_t read(std::span<char> out);
  void skip_to(std::int64_t offset);

  // Of the file itself.
  std::int64_t file_position() const { return bytes_.file_position(); }

  // Whether lines of the stream are values that lie otherwise in the file.
  bool joins_lines() const { return joiner_.has_value(); }

  TextEncoding encoding() const { return encoding_; }

  // The front of the file as it is, unpacked.
  const std::string& front() const { return front_; }

 private:
  bool is_plain() const { return !writer_ && !joiner_; }

  bool refill();
  void rewrite(std::string_view bytes, bool is_end);

  ByteStream bytes_;
  std::string front_;
  TextEncoding encoding_ = TextEncoding::kBytes;
  std::optional<Utf8Writer> writer_;
  std::optional<LineJoiner> joiner_;
  std::string ready_;  // text that nobody has read
  std::size_t used_ = 0;
  bool at_end_ = false;  // of the file
};

// The text of a file that fits in memory.
struct WholeText {
  std::string text;
  bool joins_lines = false;  // its lines are values that lie otherwise in the file
};

// Reads a file as TextStream does, and says where it is UTF-16 or UTF-32. Errors: as TextStream and
// its read().
WholeText read_whole_text(const std::filesystem::path& path, const TextStreamOptions& options);

// Says of a text file that it is read as UTF-8 though it is written otherwise, or that it is hardly
// text: most of its front is no UTF-8, or zero bytes.
void say_what_is_odd(const TextStream& stream, const std::filesystem::path& path);

}  // namespace tessera
