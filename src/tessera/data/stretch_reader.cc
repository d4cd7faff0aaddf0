#include "tessera/data/stretch_reader.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// What is encoded at a time: large beside the cost of handing it over, small beside the input.
constexpr std::size_t kStretchBytes = std::size_t{256} << 10U;

// Text without a place to cut goes to a spool file from this size on.
constexpr std::size_t kSpoolBytes = std::size_t{8} << 20U;

// Bytes around a cut that may decide about it.
constexpr std::size_t kCutContext = 8;

// The end of the last separator of `text`, as they are found from its front; 0: there is none.
std::size_t last_separator_end(std::string_view text, std::string_view separator) {
  std::size_t end = 0;
  for (std::size_t at = text.find(separator); at != std::string_view::npos;
       at = text.find(separator, end)) {
    end = at + separator.size();
  }
  return end;
}

}  // namespace

TextStreamOptions stream_options(const TextOptions& options, std::size_t file) {
  return {.holds_json = format_of(options, file) != TextFormat::kText,
          .unpacked_limit = options.unpacked_limit};
}

std::string_view Stretch::text() const {
  if (spool == nullptr) {
    return bytes;
  }
  return {reinterpret_cast<const char*>(spool->bytes().data()), spool->size()};
}

StretchReader::StretchReader(std::span<const std::filesystem::path> files,
                             const TextOptions& options,
                             const TextEncoder& encoder,
                             const ReadState& start)
    : files_(files),
      options_(options),
      encoder_(encoder),
      file_(static_cast<std::size_t>(start.file)),
      offset_(start.offset),
      document_open_(start.document_open),
      finished_bytes_(total_bytes(files.first(std::min(file_, files.size())))) {}

void StretchReader::open_next() {
  stream_ = std::make_unique<TextStream>(files_[file_], stream_options(options_, file_));
  if (offset_ > 0) {
    stream_->skip_to(offset_);
  }
  at_end_ = false;
}

// Reads until the buffer has `target` bytes or the file ends; false where nothing was read.
bool StretchReader::fill(std::size_t target) {
  const std::size_t before = buffer_.size();
  if (at_end_ || before >= target) {
    return false;
  }
  buffer_.resize(target);
  std::size_t count = 0;
  try {
    count = stream_->read(std::span(buffer_).subspan(before));
  } catch (...) {
    buffer_.resize(before);
    throw;
  }
  buffer_.resize(before + count);
  at_end_ = before + count < target;
  return count > 0;
}

std::optional<Stretch> StretchReader::next() {
  if (file_ >= files_.size()) {
    return std::nullopt;
  }
  if (!stream_) {
    open_next();
  }
  Stretch stretch;
  stretch.file = file_;
  stretch.opens = !document_open_;
  stretch.joins_lines = stream_->joins_lines();
  fill(kStretchBytes);
  std::optional<Cut> cut = find_cut();
  const auto most = is_text() ? kSpoolBytes : static_cast<std::size_t>(options_.line_limit);
  while (!cut && buffer_.size() < most) {
    fill(std::min(most, 2 * buffer_.size()));
    cut = find_cut();
  }
  if (cut) {
    take(stretch, *cut);
  } else if (is_text()) {
    spool_until_cut(stretch);
  } else {
    pass_line(stretch);
  }
  stretch.ends_file = at_end_ && buffer_.empty();
  stretch.end_offset = offset_;
  stretch.input_bytes = finished_bytes_ + stream_->file_position();
  document_open_ = !stretch.closes;
  if (stretch.ends_file) {
    finished_bytes_ += stream_->file_position();
    stream_.reset();
    ++file_;
    offset_ = 0;
  }
  return stretch;
}

void StretchReader::take(Stretch& stretch, const Cut& cut) {
  // The longer part stays in its memory.
  std::string rest = buffer_.substr(cut.size);
  buffer_.resize(cut.size);
  stretch.bytes.swap(buffer_);
  buffer_.swap(rest);
  offset_ += static_cast<std::int64_t>(cut.size);
  stretch.closes = cut.closes;
}

std::optional<StretchReader::Cut> StretchReader::find_cut() const {
  if (at_end_) {
    return Cut{.size = buffer_.size(), .closes = true};
  }
  return is_text() ? find_text_cut() : find_line_end();
}

std::optional<StretchReader::Cut> StretchReader::find_line_end() const {
  std::size_t end = buffer_.rfind('\n');
  if (end == std::string::npos && buffer_.size() >= 2) {
    // Not the last byte: a line feed that belongs to it may follow.
    end = buffer_.rfind('\r', buffer_.size() - 2);
  }
  return end == std::string::npos ? std::nullopt
                                  : std::optional(Cut{.size = end + 1, .closes = true});
}

std::optional<StretchReader::Cut> StretchReader::find_text_cut() const {
  const std::size_t separator = options_.document_separator.size();
  if (separator > 0) {
    const std::size_t end = last_separator_end(buffer_, options_.document_separator);
    if (end > 0) {
      return Cut{.size = end, .closes = true};
    }
  }
  // No separator is whole in the buffer, so none that begins at or before the cut is cut.
  const std::size_t tail = std::max<std::size_t>(separator, 1);
  if (!encoder_.find_cut || buffer_.size() <= tail) {
    return std::nullopt;
  }
  const std::size_t at = encoder_.find_cut(buffer_, buffer_.size() - tail);
  return at == 0 ? std::nullopt : std::optional(Cut{.size = at, .closes = false});
}

// To the end of the line that fills the buffer, in which is no line feed; where no line may be left
// out it need not be found.
void StretchReader::pass_line(Stretch& stretch) {
  stretch.is_too_long = true;
  std::size_t end = buffer_.find('\r');
  while (end == std::string::npos && !at_end_ && options_.skip_broken) {
    offset_ += static_cast<std::int64_t>(buffer_.size());
    buffer_.clear();
    fill(kStretchBytes);
    end = buffer_.find_first_of("\r\n");
  }
  if (end == std::string::npos) {
    end = buffer_.size();
  } else {
    fill(end + 2);
    end += buffer_.compare(end, 2, "\r\n") == 0 ? 2 : 1;
  }
  offset_ += static_cast<std::int64_t>(end);
  buffer_.erase(0, end);
}

void StretchReader::spool_until_cut(Stretch& stretch) {
  auto spool = std::make_unique<SpoolFile>(options_.scratch);
  std::optional<Cut> cut;
  while (!cut) {
    // What may be the front of a separator, or decides about a cut, waits for what follows.
    const std::size_t kept = std::max(options_.document_separator.size(), kCutContext);
    const std::size_t size = buffer_.size() - std::min(kept, buffer_.size());
    spool->append(std::string_view(buffer_).substr(0, size));
    buffer_.erase(0, size);
    offset_ += static_cast<std::int64_t>(size);
    fill(kSpoolBytes);
    cut = find_cut();
  }
  // The spool holds one document, and so ends in front of a first separator.
  const std::string& separator = options_.document_separator;
  std::size_t text = cut->size;
  if (!separator.empty()) {
    const std::size_t at = buffer_.find(separator);
    if (at != std::string::npos) {
      text = at;
      cut->size = at + separator.size();
      cut->closes = true;
    }
  }
  spool->append(std::string_view(buffer_).substr(0, text));
  buffer_.erase(0, cut->size);
  offset_ += static_cast<std::int64_t>(cut->size);
  spool->seal();
  stretch.spool = std::move(spool);
  stretch.closes = cut->closes;
}

}  // namespace tessera
