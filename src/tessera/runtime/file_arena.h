#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/base/file.h"
#include "tessera/base/file_queue.h"
#include "tessera/ir/view.h"

namespace tessera {

// The arena of a file: of one without a name, which goes with the process however that ends. Its
// addresses are those of the file as it is mapped, by which the host fills it before a run and
// looks at it after a step; steps fetch from it and store to it past the page cache.
class FileArena final : public Arena {
 public:
  // Takes the space at once. Errors: kInvalidConfig where `directory` is none or lies in memory
  // (tmpfs); kDeviceError naming it and the system's reason, or how much is free.
  FileArena(std::filesystem::path directory, std::int64_t bytes);
  ~FileArena() override;

  std::byte* data() override { return data_; }

  std::byte* host() override { return data_; }

  // Brings what the host has written there to the disk, and gives the page cache's memory back.
  void to_device(std::int64_t offset, std::int64_t bytes) override;

  // Nothing: the host sees the file.
  void to_host(std::int64_t /*offset*/, std::int64_t /*bytes*/) override {}

  // What moves tensors between the file and `memory`, for one thread at a time. It is this arena's.
  class Queue {
   public:
    Queue(FileArena& arena, std::span<const std::span<std::byte>> memory);

    // Copies tensors of the file to memory, or the other way round; all are without gaps, begin
    // with pages and have room to the end of their last one.
    // Errors: kDeviceError naming the path and the system's reason.
    void fetch(std::span<const View> from, std::span<const View> to);
    void store(std::span<const View> from, std::span<const View> to);

    // Why threads do it; empty where io_uring does.
    const std::string& why_threads() const { return queue_.why_threads(); }

   private:
    void set_stretches(std::span<const View> in_file, std::span<const View> here);

    FileArena& arena_;
    FileQueue queue_;
    std::vector<FileStretch> stretches_;  // of the op under way
  };

  // Whether steps go past the page cache: not on a file system that cannot.
  bool is_direct() const;

  std::int64_t bytes() const { return bytes_; }

  // For messages: "the file of memory.offload_dir in DIRECTORY".
  std::string text() const;

  // By which the file can be opened once more while this lives.
  std::filesystem::path path() const;

 private:
  void take_space();

  std::filesystem::path directory_;
  std::int64_t bytes_;
  FileDescriptor file_;
  std::byte* data_ = nullptr;
};

}  // namespace tessera
