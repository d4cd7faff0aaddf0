#include "tessera/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";

constexpr std::array<std::pair<DType, std::string_view>, 7> kDTypeNames = {{{DType::kF64, "F64"},
                                                                            {DType::kF32, "F32"},
                                                                            {DType::kBF16, "BF16"},
                                                                            {DType::kF16, "F16"},
                                                                            {DType::kI64, "I64"},
                                                                            {DType::kI32, "I32"},
                                                                            {DType::kU8, "U8"}}};

// What else the format knows in whole bytes, and a dtype as large.
constexpr std::array<std::pair<std::string_view, DType>, 10> kOtherDTypes = {
    {{"BOOL", DType::kU8},
     {"I8", DType::kU8},
     {"F8_E4M3", DType::kU8},
     {"F8_E5M2", DType::kU8},
     {"F8_E8M0", DType::kU8},
     {"I16", DType::kF16},
     {"U16", DType::kF16},
     {"U32", DType::kI32},
     {"U64", DType::kI64},
     {"C64", DType::kI64}}};

// A tensor whose bytes are still only promised.
struct Entry {
  SafetensorsTensor tensor;
  std::string_view other_dtype;  // empty where `tensor` has its own
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::string_view header_of(std::span<const std::byte> file, const std::string& path) {
  TESSERA_REQUIRE(file.size() >= kSafetensorsLengthBytes,
                  ErrorCode::kInvalidData,
                  "{}: offset 0: found {} bytes, expected at least the {} of a safetensors header "
                  "length",
                  path,
                  file.size(),
                  kSafetensorsLengthBytes);
  std::uint64_t length = 0;
  for (std::size_t i = kSafetensorsLengthBytes; i-- > 0;) {
    length = length << 8U | std::to_integer<std::uint64_t>(file[i]);
  }
  TESSERA_REQUIRE(length <= kMaxSafetensorsHeaderBytes,
                  ErrorCode::kInvalidData,
                  "{}: header length {} at offset 0: expected at most {}",
                  path,
                  length,
                  kMaxSafetensorsHeaderBytes);
  TESSERA_REQUIRE(length <= file.size() - kSafetensorsLengthBytes,
                  ErrorCode::kInvalidData,
                  "{}: the header needs {} bytes after offset 8, found {}: the file is truncated",
                  path,
                  length,
                  file.size() - kSafetensorsLengthBytes);
  const std::string_view header(
      reinterpret_cast<const char*>(file.data()) + kSafetensorsLengthBytes, length);
  TESSERA_REQUIRE(header.starts_with('{'),
                  ErrorCode::kInvalidData,
                  "{}: the header at offset 8 does not begin with '{{'",
                  path);
  return header;
}

std::size_t offset_in(std::string_view header, std::string_view name) {
  return kSafetensorsLengthBytes + find_json(header, "/" + json_pointer_part(name)).value_or(0);
}

// What the header says of a tensor, for messages: it names file and offset.
struct Where {
  const std::string& path;
  std::string_view header;
  const std::string& name;

  std::string text() const {
    return format("{}: {} at offset {}",
                  path,
                  name == kMetadataKey ? name : format("tensor '{}'", name),
                  offset_in(header, name));
  }
};

std::map<std::string, std::string> parse_metadata(const Json& metadata, const Where& where) {
  TESSERA_REQUIRE(metadata.is_object(),
                  ErrorCode::kInvalidData,
                  "{} is a JSON {}: expected an object of strings",
                  where.text(),
                  metadata.type_name());
  std::map<std::string, std::string> strings;
  for (const auto& [key, value] : metadata.items()) {
    TESSERA_REQUIRE(value.is_string(),
                    ErrorCode::kInvalidData,
                    "{}: '{}' is a JSON {}: expected a string",
                    where.text(),
                    key,
                    value.type_name());
    strings.emplace(key, value.get<std::string>());
  }
  return strings;
}

// The dtype of `tensor`; of one that is none of ours, which is then named, one as large.
void parse_dtype_name(const Json& json, const Where& where, Entry& entry) {
  const auto found = json.find("dtype");
  TESSERA_REQUIRE(found != json.end() && found->is_string(),
                  ErrorCode::kInvalidData,
                  "{}: expected a string 'dtype'",
                  where.text());
  const auto& text = found->get_ref<const std::string&>();
  for (const auto& [dtype, name] : kDTypeNames) {
    if (name == text) {
      entry.tensor.dtype = dtype;
      return;
    }
  }
  for (const auto& [name, as_large] : kOtherDTypes) {
    if (name == text) {
      entry.tensor.dtype = as_large;
      entry.other_dtype = name;
      return;
    }
  }
  fail(ErrorCode::kInvalidData, "{}: dtype '{}' is not known", where.text(), text);
}

// An array of integers in [0, 2^63).
std::vector<std::int64_t> parse_integers(const Json& entry, const char* key, const Where& where) {
  const auto found = entry.find(key);
  TESSERA_REQUIRE(found != entry.end() && found->is_array(),
                  ErrorCode::kInvalidData,
                  "{}: expected an array '{}'",
                  where.text(),
                  key);
  std::vector<std::int64_t> integers;
  for (const Json& element : *found) {
    TESSERA_REQUIRE(element.is_number_unsigned() &&
                        element.get<std::uint64_t>() <=
                            static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
                    ErrorCode::kInvalidData,
                    "{}: '{}' holds {}: expected integers from 0 to 2^63 - 1",
                    where.text(),
                    key,
                    element.dump(-1, ' ', false, Json::error_handler_t::replace));
    integers.push_back(element.get<std::int64_t>());
  }
  return integers;
}

Entry parse_entry(const std::string& name, const Json& json, const Where& where) {
  TESSERA_REQUIRE(json.is_object(),
                  ErrorCode::kInvalidData,
                  "{} is a JSON {}: expected an object",
                  where.text(),
                  json.type_name());
  const std::vector<std::int64_t> offsets = parse_integers(json, "data_offsets", where);
  TESSERA_REQUIRE(offsets.size() == 2 && offsets[0] <= offsets[1],
                  ErrorCode::kInvalidData,
                  "{}: expected data_offsets of [begin, end] with begin <= end",
                  where.text());
  Entry entry{.tensor = {.name = name, .shape = parse_integers(json, "shape", where), .data = {}},
              .other_dtype = {},
              .begin = static_cast<std::uint64_t>(offsets[0]),
              .end = static_cast<std::uint64_t>(offsets[1])};
  parse_dtype_name(json, where, entry);
  const std::optional<std::int64_t> expected =
      tensor_size_bytes(entry.tensor.dtype, entry.tensor.shape);
  TESSERA_REQUIRE(expected,
                  ErrorCode::kInvalidData,
                  "{}: shape {} has more than 2^63 bytes",
                  where.text(),
                  format_shape(entry.tensor.shape));
  TESSERA_REQUIRE(
      entry.end - entry.begin == static_cast<std::uint64_t>(*expected),
      ErrorCode::kInvalidData,
      "{}: data_offsets span {} bytes, expected {} for {} {}",
      where.text(),
      entry.end - entry.begin,
      *expected,
      entry.other_dtype.empty() ? safetensors_name(entry.tensor.dtype) : entry.other_dtype,
      format_shape(entry.tensor.shape));
  return entry;
}

// Points the tensors at their bytes; they must cover `data` without holes or overlaps.
void place_entries(std::vector<Entry>& entries,
                   std::span<const std::byte> data,
                   const std::string& path) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (Entry& entry : entries) {
    TESSERA_REQUIRE(entry.begin == covered,
                    ErrorCode::kInvalidData,
                    "{}: tensor '{}' begins at data offset {}, expected {}: tensors {}",
                    path,
                    entry.tensor.name,
                    entry.begin,
                    covered,
                    entry.begin < covered ? "overlap" : "leave a hole");
    TESSERA_REQUIRE(entry.end <= data.size(),
                    ErrorCode::kInvalidData,
                    "{}: tensor '{}' ends at data offset {}, but there are {} bytes of data: the "
                    "file is truncated",
                    path,
                    entry.tensor.name,
                    entry.end,
                    data.size());
    entry.tensor.data = data.subspan(entry.begin, entry.end - entry.begin);
    covered = entry.end;
  }
  TESSERA_REQUIRE(
      covered == data.size(),
      ErrorCode::kInvalidData,
      "{}: found {} bytes of data, expected {}: those from data offset {} on belong to no "
      "tensor",
      path,
      data.size(),
      covered,
      covered);
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  return std::find_if(kDTypeNames.begin(),
                      kDTypeNames.end(),
                      [dtype](const auto& known) { return known.first == dtype; })
      ->second;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : SafetensorsFile(MappedFile(path), path) {}

SafetensorsFile::SafetensorsFile(MappedFile file, const std::filesystem::path& path)
    : file_(std::move(file)) {
  const std::string_view header = header_of(file_.bytes(), path.string());
  // The format forbids repeated keys.
  const std::string file_name = path.string();
  const Json tensors =
      parse_json(header, {.name = file_name + ": header", .offset = kSafetensorsLengthBytes});
  std::vector<Entry> entries;
  for (const auto& [name, json] : tensors.items()) {
    const Where where{.path = file_name, .header = header, .name = name};
    if (name == kMetadataKey) {
      metadata_ = parse_metadata(json, where);
    } else {
      entries.push_back(parse_entry(name, json, where));
    }
  }
  place_entries(
      entries, file_.bytes().subspan(kSafetensorsLengthBytes + header.size()), path.string());
  for (Entry& entry : entries) {
    if (!entry.other_dtype.empty()) {
      others_.push_back({.name = entry.tensor.name,
                         .dtype = std::string(entry.other_dtype),
                         .shape = entry.tensor.shape});
      continue;
    }
    index_.emplace(entry.tensor.name, tensors_.size());
    tensors_.push_back(std::move(entry.tensor));
  }
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::size_t SafetensorsFile::header_offset(std::string_view name) const {
  return offset_in(header_of(file_.bytes(), ""), name);
}

bool SafetensorsFile::has(std::string_view name) const {
  return find(name) != nullptr ||
         std::ranges::find(others_, name, &OtherTensor::name) != others_.end();
}

}  // namespace tessera
