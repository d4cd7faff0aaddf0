#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera {

// What a manifest knows about a file.
struct FileDigest {
  std::int64_t size_bytes = 0;
  std::string xxh3_128;  // XXH3, 128 bits, seed 0: 32 hexadecimal digits, as `xxh128sum` prints it

  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

FileDigest digest(std::span<const std::byte> bytes);

// The digest of bytes that come in pieces.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(const DigestBuilder&) = delete;
  DigestBuilder& operator=(const DigestBuilder&) = delete;

  void append(std::span<const std::byte> bytes);

  // Of everything appended so far.
  FileDigest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
