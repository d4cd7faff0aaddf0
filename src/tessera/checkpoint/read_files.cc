#include "tessera/checkpoint/read_files.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "tessera/base/direct_file.h"
#include "tessera/base/error.h"
#include "tessera/base/status_line.h"
#include "tessera/base/stream_copy.h"
#include "tessera/base/threads.h"

namespace tessera {
namespace {

constexpr std::int64_t kAlignment = kDirectAlignment;
constexpr std::int64_t kChunkBytes = std::int64_t{8} << 20U;  // four large pages
// Chunks between the disk and who takes them.
constexpr std::size_t kNumSlots = 6;
// A disk is fastest with some 32 MiB under way, without a pause; beyond that, memory that is used
// for the first time costs more than it gains.
constexpr std::size_t kNumReaders = 4;
// A gap between segments that is read through, because another access would take longer.
constexpr std::int64_t kGapBytes = std::int64_t{256} << 10U;
// Many files that are read side by side have smaller chunks, so that what comes from one before it
// is wanted, because others have the rest, stays small.
constexpr std::int64_t kAheadBytes = std::int64_t{128} << 20U;
constexpr std::int64_t kMinChunkBytes = std::int64_t{256} << 10U;

// Aligned bytes of a file.
struct Chunk {
  std::size_t file = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;  // not behind the file's
};

// Part of a segment that lies in one chunk.
struct Piece {
  std::size_t chunk = 0;
  std::int64_t offset = 0;  // in the file
  std::size_t size = 0;
  std::byte* out = nullptr;
  const FileRead::Segment* taker = nullptr;  // in place of out
  std::int64_t order = 0;
};

struct Plan {
  std::vector<Chunk> chunks;  // in the order of reading; those of one file ascending
  std::vector<Piece> pieces;  // in the order of the chunks
};

bool is_in_order(const FileRead& file) {
  return std::ranges::any_of(file.segments, [](const auto& segment) { return segment.order > 0; });
}

std::int64_t chunk_bytes(std::span<const FileRead> files) {
  const bool in_order = std::ranges::any_of(files, is_in_order);
  const std::int64_t each = kAheadBytes / std::max<std::int64_t>(std::ssize(files), 1);
  return in_order ? std::clamp(each / kAlignment * kAlignment, kMinChunkBytes, kChunkBytes)
                  : kChunkBytes;
}

void add_chunks(std::vector<Chunk>& chunks, Chunk range, std::int64_t size) {
  for (; range.begin < range.end; range.begin += size) {
    chunks.push_back(
        {.file = range.file, .begin = range.begin, .end = std::min(range.begin + size, range.end)});
  }
}

// What has to be read of a file for its segments.
void add_ranges(std::vector<Chunk>& chunks,
                std::size_t file,
                const FileRead& read,
                std::int64_t chunk_size) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const FileRead::Segment& segment : read.segments) {
    ranges.emplace_back(segment.offset / kAlignment * kAlignment, segment.offset + segment.size());
  }
  std::ranges::sort(ranges);
  Chunk open{.file = file};
  for (const auto& [begin, end] : ranges) {
    if (begin > open.end + kGapBytes) {
      add_chunks(chunks, open, chunk_size);
      open.begin = begin;
    }
    open.end = std::max(open.end, end);
  }
  add_chunks(chunks, open, chunk_size);
}

// Puts the chunks in the order in which they are wanted. Of a file with a digest none comes before
// one that lies before it, and one that nothing wants comes with that.
void put_in_order(std::span<const FileRead> files, Plan& plan) {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  const std::size_t count = plan.chunks.size();
  std::vector<std::int64_t> order(count, kNever);
  for (const Piece& piece : plan.pieces) {
    order[piece.chunk] = std::min(order[piece.chunk], piece.order);
  }
  for (std::size_t i = count; i-- > 1;) {
    const Chunk& chunk = plan.chunks[i];
    if (plan.chunks[i - 1].file == chunk.file && files[chunk.file].digest) {
      order[i - 1] = std::min(order[i - 1], order[i]);
    }
  }
  for (std::size_t i = 1; i < count; ++i) {
    if (order[i] == kNever && plan.chunks[i - 1].file == plan.chunks[i].file) {
      order[i] = order[i - 1];
    }
  }
  std::vector<std::size_t> chosen(count);
  std::iota(chosen.begin(), chosen.end(), std::size_t{0});
  std::ranges::stable_sort(chosen, {}, [&](std::size_t chunk) { return order[chunk]; });
  std::vector<Chunk> chunks;
  std::vector<std::size_t> place(count);
  for (const std::size_t chunk : chosen) {
    place[chunk] = chunks.size();
    chunks.push_back(plan.chunks[chunk]);
  }
  plan.chunks = std::move(chunks);
  for (Piece& piece : plan.pieces) {
    piece.chunk = place[piece.chunk];
  }
  std::ranges::stable_sort(plan.pieces, {}, &Piece::chunk);
}

// The pieces of a segment, which lies in the chunks from `first` on.
void add_pieces(Plan& plan, std::size_t first, const FileRead::Segment& segment) {
  const auto own = std::span(plan.chunks).subspan(first);
  // The first chunk that ends behind the segment's begin.
  auto chunk = static_cast<std::size_t>(
      std::ranges::upper_bound(own, segment.offset, {}, &Chunk::end) - own.begin());
  for (std::int64_t done = 0; done < segment.size(); ++chunk) {
    const std::int64_t at = segment.offset + done;
    const std::int64_t count = std::min(own[chunk].end - at, segment.size() - done);
    plan.pieces.push_back({.chunk = first + chunk,
                           .offset = at,
                           .size = static_cast<std::size_t>(count),
                           .out = segment.take ? nullptr : segment.out.data() + done,
                           .taker = segment.take ? &segment : nullptr,
                           .order = segment.order});
    done += count;
  }
}

Plan make_plan(std::span<const FileRead> files) {
  Plan plan;
  const std::int64_t chunk_size = chunk_bytes(files);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileRead& file = files[i];
    std::size_t first = plan.chunks.size();
    // Then each segment has chunks of its own.
    const bool one_by_one = !file.digest && is_in_order(file);
    if (file.digest) {
      add_chunks(plan.chunks, {.file = i, .begin = 0, .end = file.size_bytes}, chunk_size);
    } else if (!one_by_one) {
      add_ranges(plan.chunks, i, file, chunk_size);
    }
    for (const FileRead::Segment& segment : file.segments) {
      TESSERA_REQUIRE(segment.offset >= 0 && segment.offset <= file.size_bytes - segment.size(),
                      ErrorCode::kInvalidArgument,
                      "{} bytes from byte {} of the {} of {}",
                      segment.size(),
                      segment.offset,
                      file.size_bytes,
                      file.path.string());
      if (one_by_one) {
        first = plan.chunks.size();
        const std::int64_t begin = segment.offset / kAlignment * kAlignment;
        add_chunks(plan.chunks,
                   {.file = i, .begin = begin, .end = segment.offset + segment.size()},
                   chunk_size);
      }
      add_pieces(plan, first, segment);
    }
  }
  put_in_order(files, plan);
  return plan;
}

// Readers fill slots with chunks; the caller makes their checksums and copies them out, in order. A
// slot is free for the chunk kNumSlots further on once that is done.
class Pass {
 public:
  Pass(std::span<const FileRead> files, Plan plan)
      : files_(files),
        plan_(std::move(plan)),
        memory_(std::min(kNumSlots, plan_.chunks.size()) * static_cast<std::size_t>(kChunkBytes)),
        filled_(plan_.chunks.size(), false) {
    for (const FileRead& file : files) {
      // What is not read at all is not opened either.
      readers_.push_back(file.digest || !file.segments.empty()
                             ? std::make_unique<DirectReader>(file.path)
                             : nullptr);
      digests_.emplace_back();
      if (file.digest && file.size_bytes == 0) {
        digests_.back() = digest({});
      }
    }
  }

  std::vector<std::optional<FileDigest>> run() {
    std::int64_t bytes = 0;
    for (const Chunk& chunk : plan_.chunks) {
      bytes += chunk.end - chunk.begin;
    }
    WorkLine line("reading tensors", bytes);
    line_ = &line;
    {
      std::vector<std::jthread> threads;
      guarded([&] {
        for (std::size_t i = 0; i < kNumReaders; ++i) {
          const bool started = start_thread(threads, [this] { guarded([this] { read(); }); });
          TESSERA_REQUIRE(started || i > 0,
                          ErrorCode::kDeviceError,
                          "the system gives no thread to read {} with: see `ulimit -u`",
                          files_[0].path.string());
        }
        use();
      });
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return std::move(digests_);
  }

 private:
  template <class Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = failure_ ? failure_ : std::current_exception();
      changed_.notify_all();
    }
  }

  std::span<std::byte> slot(std::size_t chunk) const {
    return memory_.bytes().subspan(chunk % kNumSlots * static_cast<std::size_t>(kChunkBytes),
                                   static_cast<std::size_t>(kChunkBytes));
  }

  std::span<const std::byte> content(std::size_t chunk) const {
    return slot(chunk).first(
        static_cast<std::size_t>(plan_.chunks[chunk].end - plan_.chunks[chunk].begin));
  }

  // Waits for condition(); false where another thread has failed.
  template <class Condition>
  bool wait(const Condition& condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ != nullptr || condition(); });
    return failure_ == nullptr;
  }

  template <class Change>
  void note(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  std::size_t take() {
    const std::lock_guard lock(mutex_);
    return next_++;
  }

  void read() {
    for (std::size_t i = take(); i < plan_.chunks.size(); i = take()) {
      if (!wait([&] { return i < used_ + kNumSlots; })) {
        return;
      }
      const Chunk& chunk = plan_.chunks[i];
      const auto size =
          static_cast<std::size_t>((content(i).size() + kAlignment - 1) / kAlignment * kAlignment);
      const std::size_t count = readers_[chunk.file]->read(chunk.begin, slot(i).first(size));
      TESSERA_REQUIRE(count >= content(i).size(),
                      ErrorCode::kInvalidData,
                      "{}: found {} bytes, expected {}: truncated or damaged",
                      files_[chunk.file].path.string(),
                      chunk.begin + static_cast<std::int64_t>(count),
                      files_[chunk.file].size_bytes);
      note([&] { filled_[i] = true; });
    }
  }

  // What a checksum has brought to the caches is copied from there.
  void use() {
    auto piece = plan_.pieces.begin();
    std::vector<std::unique_ptr<DigestBuilder>> digests(files_.size());
    for (std::size_t i = 0; i < plan_.chunks.size(); ++i) {
      if (!wait([&] { return filled_[i]; })) {
        return;
      }
      if (files_[plan_.chunks[i].file].digest) {
        add_to_digest(i, digests[plan_.chunks[i].file]);
      }
      for (; piece != plan_.pieces.end() && piece->chunk == i; ++piece) {
        const std::byte* from = slot(i).data() + (piece->offset - plan_.chunks[i].begin);
        if (piece->taker != nullptr) {
          piece->taker->take({from, piece->size});
        } else {
          stream_copy(piece->out, {from, piece->size});
        }
      }
      line_->add(plan_.chunks[i].end - plan_.chunks[i].begin);
      note([&] { used_ = i + 1; });
    }
  }

  void add_to_digest(std::size_t i, std::unique_ptr<DigestBuilder>& digest) {
    const Chunk& chunk = plan_.chunks[i];
    if (chunk.begin == 0) {
      digest = std::make_unique<DigestBuilder>();
    }
    digest->append(content(i));
    if (chunk.end == files_[chunk.file].size_bytes) {
      digests_[chunk.file] = digest->digest();
      digest.reset();
    }
  }

  std::span<const FileRead> files_;
  Plan plan_;
  PageBuffer memory_;
  std::vector<std::unique_ptr<DirectReader>> readers_;
  WorkLine* line_ = nullptr;  // during run()

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::size_t next_ = 0;
  std::vector<bool> filled_;
  std::size_t used_ = 0;
  std::exception_ptr failure_;
  std::vector<std::optional<FileDigest>> digests_;
};

}  // namespace

std::vector<std::optional<FileDigest>> read_files(std::span<const FileRead> files) {
  return Pass(files, make_plan(files)).run();
}

}  // namespace tessera
