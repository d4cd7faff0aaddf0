#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/direct_file.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/checkpoint/read_files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTensorAlignment = 8;
// From here on data begin where direct access to the file can reach them.
constexpr std::size_t kLargeFileBytes = std::size_t{1} << 20U;
// What is read for its checksum and then written.
constexpr std::size_t kPartBytes = std::size_t{1} << 20U;

// JSON text of `value`. Errors: kInvalidArgument if it holds a string that is not UTF-8.
std::string to_json(const nlohmann::json& value) {
  try {
    return value.dump();
  } catch (const nlohmann::json::type_error& error) {
    fail(ErrorCode::kInvalidArgument, "a tensor name or metadata: {}", error.what());
  }
}

std::size_t num_bytes(const SafetensorsTensor& tensor) {
  const std::optional<std::int64_t> bytes = tensor_size_bytes(tensor.dtype, tensor.shape);
  TESSERA_REQUIRE(bytes,
                  ErrorCode::kInvalidArgument,
                  "tensor '{}': {} is no shape, or has more than 2^63 bytes",
                  tensor.name,
                  format_shape(tensor.shape));
  return static_cast<std::size_t>(*bytes);
}

// Length, JSON and padding. Built piece by piece to keep the order of the tensors.
std::string make_header(std::span<const SafetensorsTensor> order,
                        const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += format("\"__metadata__\":{}", to_json(metadata));
  }
  std::size_t offset = 0;
  for (const SafetensorsTensor& tensor : order) {
    json += format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                   json.size() > 1 ? "," : "",
                   to_json(tensor.name),
                   safetensors_name(tensor.dtype),
                   to_json(tensor.shape),
                   offset,
                   offset + num_bytes(tensor));
    offset += num_bytes(tensor);
  }
  json += "}";
  const std::size_t alignment = offset < kLargeFileBytes ? kTensorAlignment : kDirectAlignment;
  const std::size_t whole = json.size() + kSafetensorsLengthBytes + alignment - 1;
  json.resize(whole / alignment * alignment - kSafetensorsLengthBytes, ' ');
  TESSERA_REQUIRE(json.size() <= kMaxSafetensorsHeaderBytes,
                  ErrorCode::kInvalidArgument,
                  "a header of {} bytes: expected at most {}; use more files",
                  json.size(),
                  kMaxSafetensorsHeaderBytes);
  std::string header;
  for (unsigned i = 0; i < kSafetensorsLengthBytes; ++i) {
    header += static_cast<char>(json.size() >> (8U * i) & 0xffU);
  }
  return header + json;
}

}  // namespace

void verify(std::span<const SafetensorsTensor> tensors) {
  std::set<std::string_view> names;
  for (const SafetensorsTensor& tensor : tensors) {
    TESSERA_REQUIRE(tensor.name != "__metadata__" && names.insert(tensor.name).second,
                    ErrorCode::kInvalidArgument,
                    "tensor name '{}' is reserved or used twice",
                    tensor.name);
    const std::optional<std::int64_t> expected = tensor_size_bytes(tensor.dtype, tensor.shape);
    TESSERA_REQUIRE(expected && static_cast<std::size_t>(*expected) == tensor.data.size(),
                    ErrorCode::kInvalidArgument,
                    "tensor '{}': {} {} given {} bytes of data",
                    tensor.name,
                    safetensors_name(tensor.dtype),
                    format_shape(tensor.shape),
                    tensor.data.size());
  }
}

std::vector<SafetensorsTensor> in_file_order(std::span<const SafetensorsTensor> tensors) {
  std::vector<SafetensorsTensor> order(tensors.begin(), tensors.end());
  std::ranges::stable_sort(order, std::greater(), [](const SafetensorsTensor& tensor) {
    return size_bytes(tensor.dtype);
  });
  return order;
}

FileDigest write_safetensors(const std::filesystem::path& path,
                             std::span<const SafetensorsTensor> tensors,
                             const std::map<std::string, std::string>& metadata,
                             const std::function<void(std::int64_t)>& written) {
  verify(tensors);
  const std::vector<SafetensorsTensor> order = in_file_order(tensors);
  const std::string header = make_header(order, metadata);
  DigestBuilder digest;
  AtomicFile file(path);
  std::size_t size = header.size();
  for (const SafetensorsTensor& tensor : order) {
    size += tensor.data.size();
  }
  DirectWriter writer(file.descriptor(), size, file.temporary());
  using Told = std::function<void(std::int64_t)>;
  const auto put = [&](std::span<const std::byte> bytes, bool in_place, const Told& told = {}) {
    // What the checksum has brought to the caches is copied from there.
    for (std::size_t at = 0; at < bytes.size(); at += kPartBytes) {
      const auto part = bytes.subspan(at, std::min(kPartBytes, bytes.size() - at));
      digest.append(part);
      in_place ? writer.append_in_place(part) : writer.append(part);
      if (told) {
        told(std::ssize(part));
      }
    }
  };
  put(std::as_bytes(std::span(header)), true);
  std::size_t next = 0;  // the tensor that is put next
  const auto put_until = [&](std::size_t end) {
    for (; next < end; ++next) {
      put(order[next].data, true, written);
    }
  };
  std::map<fs::path, FileRead> reads;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (!order[i].source || order[i].data.empty()) {
      continue;
    }
    const FileSource& source = *order[i].source;
    FileRead& read = reads[source.path];
    read.path = source.path;
    read.size_bytes = source.size_bytes;
    read.segments.push_back({.offset = source.offset,
                             .count = std::ssize(order[i].data),
                             .take =
                                 [&, i](std::span<const std::byte> bytes) {
                                   if (next <= i) {
                                     put_until(i);
                                     next = i + 1;
                                   }
                                   put(bytes, false);
                                 },
                             .order = static_cast<std::int64_t>(i) + 1});
  }
  std::vector<FileRead> files;
  for (auto& [unused, read] : reads) {
    files.push_back(std::move(read));
  }
  if (!files.empty()) {
    read_files(files);
  }
  put_until(order.size());
  writer.finish();
  file.commit();
  return digest.digest();
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::span<const SafetensorsTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  const std::string header = make_header(tensors, metadata);
  missing_bytes_ = header.size();
  for (const SafetensorsTensor& tensor : tensors) {
    missing_bytes_ += num_bytes(tensor);
  }
  writer_ = std::make_unique<DirectWriter>(file_.descriptor(), missing_bytes_, file_.temporary());
  append(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  TESSERA_REQUIRE(bytes.size() <= missing_bytes_,
                  ErrorCode::kInvalidArgument,
                  "{} bytes more than the tensors have",
                  bytes.size() - missing_bytes_);
  missing_bytes_ -= bytes.size();
  writer_->append(bytes);
}

void SafetensorsWriter::finish() {
  TESSERA_REQUIRE(missing_bytes_ == 0,
                  ErrorCode::kInvalidArgument,
                  "{} bytes of tensors have not come",
                  missing_bytes_);
  if (writer_) {
    writer_->finish();
    writer_.reset();
  }
}

void SafetensorsWriter::commit() {
  finish();
  file_.commit();
}

}  // namespace tessera
