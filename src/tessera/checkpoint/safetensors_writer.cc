#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

constexpr std::size_t kAlignment = 8;
constexpr std::size_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
// Bytes that are hashed, then written while they are still in the cache.
constexpr std::size_t kChunkBytes = std::size_t{4} << 20U;

void require_valid(std::span<const SafetensorsTensor> tensors) {
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

// By falling element size, which keeps every tensor aligned.
std::vector<const SafetensorsTensor*> file_order(std::span<const SafetensorsTensor> tensors) {
  std::vector<const SafetensorsTensor*> order;
  for (const std::size_t element_size : {8U, 4U, 2U, 1U}) {
    for (const SafetensorsTensor& tensor : tensors) {
      if (size_bytes(tensor.dtype) == element_size) {
        order.push_back(&tensor);
      }
    }
  }
  TESSERA_CHECK(order.size() == tensors.size(), "a dtype of another size than 8, 4, 2 or 1 bytes");
  return order;
}

// JSON text of `value`. Errors: kInvalidArgument if it holds a string that is not UTF-8.
std::string to_json(const nlohmann::json& value) {
  try {
    return value.dump();
  } catch (const nlohmann::json::type_error& error) {
    fail(ErrorCode::kInvalidArgument, "a tensor name or metadata: {}", error.what());
  }
}

// Length, JSON and padding. Built piece by piece to keep the order of the tensors.
std::string make_header(std::span<const SafetensorsTensor* const> order,
                        const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += format("\"__metadata__\":{}", to_json(metadata));
  }
  std::size_t offset = 0;
  for (const SafetensorsTensor* tensor : order) {
    json += format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                   json.size() > 1 ? "," : "",
                   to_json(tensor->name),
                   safetensors_name(tensor->dtype),
                   to_json(tensor->shape),
                   offset,
                   offset + tensor->data.size());
    offset += tensor->data.size();
  }
  json += "}";
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  TESSERA_REQUIRE(json.size() <= kMaxHeaderBytes,
                  ErrorCode::kInvalidArgument,
                  "a header of {} bytes: expected at most {}; use more files",
                  json.size(),
                  kMaxHeaderBytes);
  std::string header;
  for (unsigned i = 0; i < 8; ++i) {
    header += static_cast<char>(json.size() >> (8U * i) & 0xffU);
  }
  return header + json;
}

void append(AtomicFile& file, std::span<const std::byte> bytes, DigestBuilder& digest) {
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min(bytes.size(), kChunkBytes));
    digest.append(chunk);
    file.write({reinterpret_cast<const char*>(chunk.data()), chunk.size()});
    bytes = bytes.subspan(chunk.size());
  }
}

}  // namespace

FileDigest write_safetensors(const std::filesystem::path& path,
                             std::span<const SafetensorsTensor> tensors,
                             const std::map<std::string, std::string>& metadata) {
  require_valid(tensors);
  const std::vector<const SafetensorsTensor*> order = file_order(tensors);
  const std::string header = make_header(order, metadata);
  AtomicFile file(path);
  DigestBuilder digest;
  append(file, std::as_bytes(std::span(header)), digest);
  for (const SafetensorsTensor* tensor : order) {
    append(file, tensor->data, digest);
  }
  file.commit();
  return digest.digest();
}

}  // namespace tessera
