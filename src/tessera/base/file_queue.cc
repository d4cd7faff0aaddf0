#include "tessera/base/file_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <liburing.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tessera/base/direct_file.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/threads.h"

namespace tessera {
namespace {

// A disk is at full speed with some megabytes under way.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;
constexpr unsigned kDepth = 32;  // pieces at a time
constexpr std::size_t kNumThreads = 2;

// What the system takes of memory that it is to know.
constexpr std::size_t kMostKnownBytes = std::size_t{1} << 30U;

bool is_direct(const FileDescriptor& file) {
  return (::fcntl(file.get(), F_GETFL) & O_DIRECT) != 0;
}

}  // namespace

class FileQueue::Ring {
 public:
  // Errors, in `error`: why there is none.
  Ring(std::span<const std::span<std::byte>> memory, int& error) {
    error = -io_uring_queue_init(kDepth, &ring_, 0);
    if (error != 0) {
      return;
    }
    is_open_ = true;
    if (io_uring_probe* const probe = io_uring_get_probe_ring(&ring_)) {
      for (const int op : {IORING_OP_READ, IORING_OP_WRITE}) {
        error = io_uring_opcode_supported(probe, op) != 0 ? error : ENOSYS;
      }
      io_uring_free_probe(probe);
    } else {
      error = ENOSYS;
    }
    for (std::span<std::byte> all : memory) {
      for (; !all.empty(); all = all.subspan(std::min(all.size(), kMostKnownBytes))) {
        known_.push_back(
            {.iov_base = all.data(), .iov_len = std::min(all.size(), kMostKnownBytes)});
      }
    }
    if (!known_.empty() && io_uring_register_buffers(
                               &ring_, known_.data(), static_cast<unsigned>(known_.size())) != 0) {
      known_.clear();
    }
  }

  ~Ring() {
    if (is_open_) {
      io_uring_queue_exit(&ring_);
    }
  }

  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void add(int file, Piece& piece, bool writes) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    TESSERA_CHECK(entry != nullptr, "a ring of {} entries is full", kDepth);
    const auto size = static_cast<unsigned>(piece.size);
    const auto offset = static_cast<std::uint64_t>(piece.offset);
    const int known = known_at(piece);
    if (known >= 0) {
      writes ? io_uring_prep_write_fixed(entry, file, piece.memory, size, offset, known)
             : io_uring_prep_read_fixed(entry, file, piece.memory, size, offset, known);
    } else {
      writes ? io_uring_prep_write(entry, file, piece.memory, size, offset)
             : io_uring_prep_read(entry, file, piece.memory, size, offset);
    }
    io_uring_sqe_set_data(entry, &piece);
  }

  // Begins what was added, and waits until one of those `under_way` has ended: which, and with how
  // many bytes or, below 0, which error. Errors: where the ring itself fails, once those have ended
  // that it still tells of.
  std::pair<Piece*, std::int64_t> next(std::size_t under_way) {
    io_uring_cqe* entry = nullptr;
    while (true) {
      const int submitted = io_uring_submit(&ring_);
      // Where the system can take no more for now, some that it has must end first.
      const bool is_full = submitted == -EAGAIN || submitted == -EBUSY || submitted == -EINTR;
      int error = submitted < 0 && !is_full ? submitted : 0;
      error = error == 0 ? wait(entry, is_full) : error;
      if (error == 0) {
        const std::pair result(static_cast<Piece*>(io_uring_cqe_get_data(entry)),
                               std::int64_t{entry->res});
        io_uring_cqe_seen(&ring_, entry);
        return result;
      }
      if (error != -EINTR && error != -EAGAIN && error != -ETIME) {
        drain(under_way);
        fail(ErrorCode::kDeviceError, "io_uring: {}", std::strerror(-error));
      }
    }
  }

 private:
  // For a while alone where `briefly`: what was not taken is to be tried again.
  int wait(io_uring_cqe*& entry, bool briefly) {
    if (!briefly) {
      return io_uring_wait_cqe(&ring_, &entry);
    }
    __kernel_timespec while_full = {.tv_sec = 0, .tv_nsec = 1'000'000};
    return io_uring_wait_cqe_timeout(&ring_, &entry, &while_full);
  }

  void drain(std::size_t under_way) {
    io_uring_cqe* entry = nullptr;
    for (; under_way > 0 && io_uring_wait_cqe(&ring_, &entry) == 0; --under_way) {
      io_uring_cqe_seen(&ring_, entry);
    }
  }

  int known_at(const Piece& piece) const {
    const auto found = std::ranges::find_if(known_, [&](const iovec& known) {
      const auto* const begin = static_cast<const std::byte*>(known.iov_base);
      return begin <= piece.memory && piece.memory + piece.size <= begin + known.iov_len;
    });
    return found == known_.end() ? -1 : static_cast<int>(found - known_.begin());
  }

  io_uring ring_ = {};
  bool is_open_ = false;
  std::vector<iovec> known_;
};

FileQueue::FileQueue(const FileDescriptor& file,
                     std::filesystem::path path,
                     std::span<const std::span<std::byte>> memory)
    : file_(file), path_(std::move(path)) {
  int error = 0;
  ring_ = std::make_unique<Ring>(memory, error);
  if (error == 0) {
    return;
  }
  ring_.reset();
  why_threads_ = format("{}{}",
                        std::strerror(error),
                        error == EPERM || error == EACCES ? " (containers often forbid it)" : "");
  for (std::size_t i = 0; i < kNumThreads; ++i) {
    start_thread(threads_, [this](const std::stop_token& stop) { work(stop); });
  }
}

FileQueue::~FileQueue() = default;

void FileQueue::run(std::span<const FileStretch> stretches, bool writes) {
  std::vector<Piece> pieces;
  pieces.swap(spare_);
  pieces.clear();
  for (const FileStretch& stretch : stretches) {
    const auto address = reinterpret_cast<std::uintptr_t>(stretch.memory.data());
    TESSERA_CHECK((address | static_cast<std::uintptr_t>(stretch.offset) | stretch.memory.size()) %
                          kDirectAlignment ==
                      0,
                  "{}: a stretch of {} bytes at {} that does not begin and end with pages",
                  path_.string(),
                  stretch.memory.size(),
                  stretch.offset);
    for (std::size_t at = 0; at < stretch.memory.size(); at += kPieceBytes) {
      pieces.push_back({.offset = stretch.offset + static_cast<std::int64_t>(at),
                        .memory = stretch.memory.data() + at,
                        .size = std::min(kPieceBytes, stretch.memory.size() - at)});
    }
  }
  ring_ ? run_on_ring(pieces, writes) : run_on_threads(pieces, writes);
}

// Memory is used until all that was begun has ended, whatever fails.
void FileQueue::run_on_ring(std::vector<Piece>& pieces, bool writes) {
  std::size_t next = 0;
  std::size_t under_way = 0;
  std::exception_ptr failure;
  const auto begin = [&](Piece& piece) {
    piece.direct = is_direct(file_);
    ring_->add(file_.get(), piece, writes);
    ++under_way;
  };
  while (next < pieces.size() || under_way > 0) {
    while (next < pieces.size() && under_way < kDepth) {
      begin(pieces[next++]);
    }
    const auto [piece, result] = ring_->next(under_way);
    --under_way;
    try {
      advance(*piece, result, writes);
    } catch (...) {
      failure = failure ? failure : std::current_exception();
      piece->size = 0;
      next = pieces.size();
    }
    if (piece->size > 0) {
      begin(*piece);
    }
  }
  spare_.swap(pieces);
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void FileQueue::run_on_threads(std::vector<Piece>& pieces, bool writes) {
  std::unique_lock lock(mutex_);
  pieces_.swap(pieces);
  writes_ = writes;
  next_ = ended_ = 0;
  failure_ = nullptr;
  changed_.notify_all();
  if (threads_.empty()) {
    move_pieces(lock);
  }
  changed_.wait(lock, [&] { return ended_ == pieces_.size(); });
  // No thread has anything to do until the next run.
  spare_.swap(pieces_);
  pieces_.clear();
  next_ = ended_ = 0;
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void FileQueue::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return next_ < pieces_.size(); })) {
    move_pieces(lock);
  }
}

void FileQueue::move_pieces(std::unique_lock<std::mutex>& lock) {
  while (next_ < pieces_.size()) {
    const Piece piece = pieces_[next_++];
    const bool writes = writes_;
    if (!failure_) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        move(piece, writes);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure_ ? failure_ : failure;
    }
    ++ended_;
  }
  changed_.notify_all();
}

void FileQueue::move(Piece piece, bool writes) const {
  while (piece.size > 0) {
    piece.direct = is_direct(file_);
    const ssize_t result = writes ? ::pwrite(file_.get(), piece.memory, piece.size, piece.offset)
                                  : ::pread(file_.get(), piece.memory, piece.size, piece.offset);
    advance(piece, result < 0 ? -errno : result, writes);
  }
}

// What the system has cut short goes on from there.
void FileQueue::advance(Piece& piece, std::int64_t result, bool writes) const {
  if (result == -EINTR || result == -EAGAIN) {
    return;
  }
  const bool is_odd = result > 0 && static_cast<std::size_t>(result) < piece.size &&
                      static_cast<std::size_t>(result) % kDirectAlignment != 0;
  if (piece.direct && (result == -EINVAL || is_odd)) {
    // It takes the flag, but other alignments. Others may have been begun with it.
    ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) & ~O_DIRECT);
  } else if (result <= 0) {
    fail_move(result == 0 ? 0 : static_cast<int>(-result), writes);
  }
  const std::int64_t moved = std::max<std::int64_t>(result, 0);
  piece.offset += moved;
  piece.memory += moved;
  piece.size -= static_cast<std::size_t>(moved);
}

void FileQueue::fail_move(int error, bool writes) const {
  fail(ErrorCode::kDeviceError,
       "cannot {} {}: {}",
       writes ? "write" : "read",
       path_.string(),
       error == 0 ? "it ends early" : std::strerror(error));
}

}  // namespace tessera
