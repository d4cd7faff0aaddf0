#include "tessera/data/text_stream.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/utf8.h"
#include "tessera/data/file_kind.h"

namespace tessera {
namespace {

// What is looked at before a file is read.
constexpr std::size_t kFrontBytes = std::size_t{64} << 10U;

constexpr std::size_t kPieceBytes = std::size_t{128} << 10U;

// The share of a file's front beyond which it is hardly text: of random bytes nearly half are no
// UTF-8, of English in Latin-1 a few in a hundred.
constexpr double kOddShare = 0.25;

std::string read_front(ByteStream& bytes, std::size_t size) {
  std::string front(size, '\0');
  front.resize(bytes.read(front));
  return front;
}

// Bytes that are zero, or no part of a character.
std::size_t count_odd(std::string_view text) {
  std::size_t odd = 0;
  while (!text.empty()) {
    const Utf8Sequence next = front_utf8(text);
    odd += next.status == Utf8Status::kInvalid || text.front() == '\0' ? next.size : 0;
    text.remove_prefix(next.size);
  }
  return odd;
}

}  // namespace

TextStream::TextStream(const std::filesystem::path& path, const TextStreamOptions& options)
    : bytes_(path, {.unpacked_limit = options.unpacked_limit}),
      front_(read_front(bytes_, kFrontBytes)),
      encoding_(detect_encoding(front_)),
      at_end_(front_.size() < kFrontBytes) {
  const FileKind kind = known_kind(front_);
  TESSERA_REQUIRE(kind.name.empty(),
                  ErrorCode::kInvalidData,
                  "{} is {}, expected {}: {}",
                  path.string(),
                  kind.name,
                  options.holds_json ? "JSON, an object a line" : "text",
                  kind.advice);
  if (encoding_ != TextEncoding::kBytes) {
    writer_.emplace(encoding_);
  }
  rewrite(front_, at_end_);
  if (options.holds_json && spans_lines(ready_, at_end_)) {
    joiner_.emplace();
    const std::string text = std::move(ready_);
    ready_.clear();
    joiner_->push(text, ready_);
    if (at_end_) {
      joiner_->flush(ready_);
    }
  }
}

// Adds text to ready_.
void TextStream::rewrite(std::string_view bytes, bool is_end) {
  std::string text;
  std::string& utf8 = joiner_ ? text : ready_;
  if (writer_) {
    writer_->push(bytes, utf8);
    if (is_end) {
      writer_->flush(utf8);
    }
  } else {
    utf8 += bytes;
  }
  if (joiner_) {
    joiner_->push(text, ready_);
    if (is_end) {
      joiner_->flush(ready_);
    }
  }
}

// More text in ready_; false at the end.
bool TextStream::refill() {
  ready_.clear();
  used_ = 0;
  while (ready_.empty() && !at_end_) {
    const std::string bytes = read_front(bytes_, kPieceBytes);
    at_end_ = bytes.size() < kPieceBytes;
    rewrite(bytes, at_end_);
  }
  return !ready_.empty();
}

std::size_t TextStream::read(std::span<char> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    if (used_ == ready_.size() && is_plain()) {
      return done + (at_end_ ? 0 : bytes_.read(out.subspan(done)));
    }
    if (used_ == ready_.size() && !refill()) {
      break;
    }
    const std::size_t count = std::min(out.size() - done, ready_.size() - used_);
    std::copy_n(ready_.data() + used_, count, out.data() + done);
    used_ += count;
    done += count;
  }
  return done;
}

void TextStream::skip_to(std::int64_t offset) {
  if (is_plain() && offset > static_cast<std::int64_t>(ready_.size())) {
    bytes_.skip_to(offset);
    used_ = ready_.size();
    return;
  }
  std::vector<char> dropped(kPieceBytes);
  for (std::int64_t left = offset; left > 0;) {
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(left, static_cast<std::int64_t>(dropped.size())));
    TESSERA_REQUIRE(read(std::span(dropped).first(count)) == count,
                    ErrorCode::kInvalidData,
                    "a text of {} bytes or more has become shorter since it was begun",
                    offset);
    left -= static_cast<std::int64_t>(count);
  }
}

WholeText read_whole_text(const std::filesystem::path& path, const TextStreamOptions& options) {
  TextStream stream(path, options);
  if (stream.encoding() != TextEncoding::kBytes) {
    say_what_is_odd(stream, path);
  }
  WholeText whole = {.text = {}, .joins_lines = stream.joins_lines()};
  std::vector<char> piece(kPieceBytes);
  while (const std::size_t count = stream.read(piece)) {
    whole.text.append(piece.data(), count);
  }
  return whole;
}

void say_what_is_odd(const TextStream& stream, const std::filesystem::path& path) {
  if (stream.encoding() != TextEncoding::kBytes) {
    log_info(format("{} is {}: it is read as UTF-8", path.string(), to_string(stream.encoding())));
    return;
  }
  const std::string& front = stream.front();
  const std::size_t odd = count_odd(front);
  if (static_cast<double>(odd) > kOddShare * static_cast<double>(front.size())) {
    log_warning(
        format("{} is hardly text: {:.0f} % of its first {} bytes are no UTF-8, or zero; its bytes "
               "are taken as they are",
               path.string(),
               100.0 * static_cast<double>(odd) / static_cast<double>(front.size()),
               front.size()));
  }
}

}  // namespace tessera
