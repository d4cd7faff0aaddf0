#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/direct_file.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/ir/dtype.h"

namespace tessera {

// Where bytes of a mapped file come from.
struct FileSource {
  std::filesystem::path path;
  std::int64_t size_bytes = 0;  // of the file
  std::int64_t offset = 0;
};

// A named tensor in row-major order, little-endian. `data` is borrowed.
struct SafetensorsTensor {
  std::string name = {};
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> data = {};
  std::optional<FileSource> source =
      {};  // to write `data` past the page cache, where they are mapped
};

// The name of a dtype in the file format: "F32", "BF16", ...
std::string_view safetensors_name(DType dtype);

// A tensor of a dtype that no op has: BOOL, I8, I16, U16, U32, U64, C64 or one of the 8-bit floats.
struct OtherTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

// A safetensors file, mapped: tensors are views into the file and live as long as this object.
// Source: https://huggingface.co/docs/safetensors, "Format".
class SafetensorsFile {
 public:
  // Checks the whole header before it gives anything out.
  // Errors: kInvalidData naming the file, the offset, the tensor, what was found and what was
  // expected.
  explicit SafetensorsFile(const std::filesystem::path& path);

  // The same for a file that is already mapped; `path` is for messages.
  SafetensorsFile(MappedFile file, const std::filesystem::path& path);

  // In the order of their data.
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }

  // Those that are in none of tensors(), likewise.
  std::span<const OtherTensor> others() const { return others_; }

  // Where the file's header names a tensor: for messages.
  std::size_t header_offset(std::string_view name) const;

  // Null where tensors() has no such tensor.
  const SafetensorsTensor* find(std::string_view name) const;

  // Whether the file has such a tensor, of any dtype.
  bool has(std::string_view name) const;

  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The whole file.
  std::span<const std::byte> bytes() const { return file_.bytes(); }

 private:
  MappedFile file_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<OtherTensor> others_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

// Errors: kInvalidArgument for a bad or repeated name, or data that does not match the shape.
void verify(std::span<const SafetensorsTensor> tensors);

// By falling element size, then in the order given, so that each one is aligned in a file.
std::vector<SafetensorsTensor> in_file_order(std::span<const SafetensorsTensor> tensors);

// Replaces `path` atomically by a file with these tensors, in file order, through
// buffers of 12 MiB at most. `written` is told of data that come from memory, some bytes at a time.
// Errors: as verify(); kDeviceError naming the path and the system's reason (the old file stays).
FileDigest write_safetensors(const std::filesystem::path& path,
                             std::span<const SafetensorsTensor> tensors,
                             const std::map<std::string, std::string>& metadata = {},
                             const std::function<void(std::int64_t)>& written = {});

// The same for tensors whose data come one behind the other, so that they need not be in memory
// together.
class SafetensorsWriter {
 public:
  // The tensors in file order; their `data` are not looked at. Errors: as write_safetensors().
  SafetensorsWriter(const std::filesystem::path& path,
                    std::span<const SafetensorsTensor> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // Copies them, and returns before they are written.
  // Errors: kInvalidArgument for more than the tensors have.
  void append(std::span<const std::byte> bytes);

  // Waits until all are written, and gives the buffers back. Errors: kInvalidArgument unless all
  // bytes have come.
  void finish();

  // The file appears, finished if it is not.
  void commit();

 private:
  AtomicFile file_;
  std::size_t missing_bytes_ = 0;
  std::unique_ptr<DirectWriter> writer_;
};

}  // namespace tessera
