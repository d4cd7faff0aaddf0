#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/file.h"

namespace tessera {

// Where a stretch of a file comes from or goes to. Place, address and size are multiples of
// kDirectAlignment (direct_file.h).
struct FileStretch {
  std::int64_t offset = 0;
  std::span<std::byte> memory = {};
};

// Reads and writes stretches of a file past the page cache, many pieces of them at a time: by
// io_uring, or by two threads where the system forbids that (as many containers do). One thread at
// a time uses a queue.
class FileQueue {
 public:
  // `file` is open for both, and outlives this; `path` is for errors. `memory`: what the stretches
  // will mostly lie in, which the system then need not look up each time; it is not where the
  // process may lock no more (RLIMIT_MEMLOCK).
  FileQueue(const FileDescriptor& file,
            std::filesystem::path path,
            std::span<const std::span<std::byte>> memory = {});
  ~FileQueue();
  FileQueue(const FileQueue&) = delete;
  FileQueue& operator=(const FileQueue&) = delete;

  // Return when all is done. Errors: kDeviceError naming the path and the system's reason, once
  // nothing is under way any more.
  void read(std::span<const FileStretch> stretches) { run(stretches, false); }

  void write(std::span<const FileStretch> stretches) { run(stretches, true); }

  // Why threads do it; empty where io_uring does.
  const std::string& why_threads() const { return why_threads_; }

 private:
  class Ring;

  // What is moved at a time.
  struct Piece {
    std::int64_t offset = 0;
    std::byte* memory = nullptr;
    std::size_t size = 0;  // that is left
    bool direct = false;   // whether it was begun past the page cache
  };

  void run(std::span<const FileStretch> stretches, bool writes);
  void run_on_ring(std::vector<Piece>& pieces, bool writes);
  void run_on_threads(std::vector<Piece>& pieces, bool writes);
  void work(const std::stop_token& stop);
  void move_pieces(std::unique_lock<std::mutex>& lock);
  void move(Piece piece, bool writes) const;
  void advance(Piece& piece, std::int64_t result, bool writes) const;
  [[noreturn]] void fail_move(int error, bool writes) const;

  const FileDescriptor& file_;
  std::filesystem::path path_;
  std::string why_threads_;
  std::unique_ptr<Ring> ring_;  // null: threads
  std::vector<Piece> spare_;    // memory of the last run's, for the next

  std::mutex mutex_;  // of what follows, which is of the run under way on threads
  std::condition_variable_any changed_;
  std::vector<Piece> pieces_;
  bool writes_ = false;
  std::size_t next_ = 0;   // of the pieces
  std::size_t ended_ = 0;  // how many
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;
};

}  // namespace tessera
