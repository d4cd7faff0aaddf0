#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/file.h"
#include "tessera/data/token_type.h"

namespace tessera {

// The index of Megatron-LM's mapped data sets (.idx beside .bin), little-endian:
//
//   bytes  0  "MMIDIDX\0\0"
//          9  u64 version, 1
//         17  u8  type of a token: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
//         18  u64 S, number of sequences
//         26  u64 D + 1, number of documents and 1
//         34  i32 tokens of each sequence            x S
//             i64 byte of its first token in .bin    x S
//             i64 first sequence of each document, and S    x (D + 1)
//
// A document is one sequence or several. Where a file ends with S more bytes, they are the modes of
// multimodal data, which are not read.
// Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
class MegatronIndex {
 public:
  // `bytes` is the file, borrowed; `name` names it in errors. Checked from end to end: the
  // sequences lie in .bin one behind the other, and the documents hold each of them once. Errors:
  // kInvalidData naming the byte, what was found and what was expected.
  MegatronIndex(std::span<const std::byte> bytes, std::string_view name);

  TokenType type() const { return type_; }

  std::int64_t num_tokens() const { return num_tokens_; }

  std::int64_t num_sequences() const { return num_sequences_; }

  std::int64_t num_documents() const { return num_documents_; }

  // The number of its first token. Precondition: 0 <= document <= num_documents().
  std::int64_t document_start(std::int64_t document) const;

 private:
  void check_header(std::string_view name);
  void check_sequences(std::string_view name);
  void check_documents(std::string_view name) const;
  template <class T>
  T at(std::size_t offset) const;

  std::span<const std::byte> bytes_;
  TokenType type_ = TokenType::kU16;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_documents_ = 0;
  std::int64_t num_tokens_ = 0;
  std::size_t pointers_ = 0;   // where they begin
  std::size_t documents_ = 0;  // likewise
};

// "data.bin" or "data.idx" or "data" -> the pair's common path, "data".
std::filesystem::path megatron_prefix(const std::filesystem::path& path);

// Writes PREFIX.idx, atomically, for a PREFIX.bin that holds documents of these lengths one behind
// the other; `lengths` is a file of an i64 each, which is read in parts: there may be more than
// memory should hold. A document above 2^31 - 1 tokens is cut into several sequences.
// Errors: kInvalidData for `lengths`; kDeviceError.
void write_megatron_index(const std::filesystem::path& prefix,
                          TokenType type,
                          const std::filesystem::path& lengths);

}  // namespace tessera
