#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "tessera/checkpoint/file_digest.h"

namespace tessera {

// What is wanted of a file.
struct FileRead {
  // Bytes from `offset` on, and where they go: to `out`, or, `count` of them, to `take`, which gets
  // them in order, some at a time, from one thread.
  struct Segment {
    std::int64_t offset = 0;
    std::span<std::byte> out = {};
    std::int64_t count = 0;
    std::function<void(std::span<const std::byte>)> take = {};
    // What is wanted first is read first, as far as a file with a digest is read from its begin to
    // its end. Those of other files come in just this order where all have one, from 1 on.
    std::int64_t order = 0;

    std::int64_t size() const { return take ? count : std::ssize(out); }
  };

  std::filesystem::path path;
  std::int64_t size_bytes = 0;         // of the file
  std::vector<Segment> segments = {};  // in any order; they may overlap
  bool digest = false;                 // of the whole file
};

// Reads all of it in one pass past the page cache: the disk, and checksums and copies, work side by
// side.
// Returns the digest of each file where it is wanted. Without a digest, nothing is read of a file
// but what the segments need.
// Errors: kInvalidData naming the file and the system's reason, or that it is shorter than it
// should be.
std::vector<std::optional<FileDigest>> read_files(std::span<const FileRead> files);

}  // namespace tessera
