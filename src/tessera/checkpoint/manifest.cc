#include "tessera/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormatName = "tessera-checkpoint";
constexpr int kVersion = 2;
constexpr int kOldestVersion = 1;  // without ranges: every slice is a box

// The text is exactly kPrefix, the checksum of body, kMiddle, body, kSuffix: no byte is unchecked.
constexpr std::string_view kPrefix = "{\"xxh3_128\":\"";
constexpr std::string_view kMiddle = "\",\n\"manifest\":";
constexpr std::string_view kSuffix = "}\n";
constexpr std::size_t kChecksumDigits = 32;

constexpr std::array<std::pair<TensorRole, std::string_view>, 5> kRoleNames = {
    {{TensorRole::kParameter, "parameter"},
     {TensorRole::kMoment1, "moment1"},
     {TensorRole::kMoment2, "moment2"},
     {TensorRole::kMaster, "master"},
     {TensorRole::kBuffer, "buffer"}}};

std::string checksum(std::string_view text) {
  return digest(std::as_bytes(std::span(text))).xxh3_128;
}

Json to_json(const CheckpointMeta& meta) {
  return {{"step", meta.step},
          {"applied_steps", meta.applied_steps},
          {"tokens_seen", meta.tokens_seen},
          {"seed", meta.seed}};
}

Json to_json(const ManifestFile& file) {
  return {{"name", file.name},
          {"size_bytes", file.digest.size_bytes},
          {"xxh3_128", file.digest.xxh3_128}};
}

Json to_json(const ManifestTensor& tensor) {
  Json slices = Json::array();
  for (const ManifestSlice& slice : tensor.slices) {
    Json json = {{"file", slice.file},
                 {"key", slice.key},
                 {"offset", slice.part.offset},
                 {"extent", slice.part.extent}};
    if (!is_box(slice.part)) {
      json["begin"] = slice.part.begin;
      json["count"] = slice.part.count;
    }
    slices.push_back(std::move(json));
  }
  return {{"name", tensor.name},
          {"role", to_string(tensor.role)},
          {"dtype", name(tensor.dtype)},
          {"shape", tensor.shape},
          {"slices", std::move(slices)}};
}

// One element a line, so that people can read and compare manifests.
template <class Element>
std::string print_lines(const std::vector<Element>& elements) {
  std::string text = "[";
  for (const Element& element : elements) {
    text += format("{}\n  {}", text.size() > 1 ? "," : "", to_json(element).dump());
  }
  return text + "\n ]";
}

// Throws Json::exception for text that is not JSON or not UTF-8.
std::string print_body(const Manifest& manifest) {
  std::string body = "{\n";
  body += format(" \"format\": \"{}\",\n \"version\": {},\n", kFormatName, kVersion);
  body += format(" \"trainer\": {},\n", to_json(manifest.meta).dump());
  body += format(" \"model\": {},\n", Json::parse(manifest.meta.model).dump());
  body += format(" \"config\": {},\n", Json(manifest.meta.config).dump());
  body += format(" \"tokenizer\": {},\n", Json(manifest.meta.tokenizer).dump());
  if (!manifest.meta.data.empty()) {
    body += format(" \"data\": {},\n", Json(manifest.meta.data).dump());
  }
  if (!manifest.meta.sum_order.empty()) {
    body += format(" \"sum_order\": {},\n", Json(manifest.meta.sum_order).dump());
  }
  if (manifest.meta.num_tensors > 0) {
    body += format(" \"num_tensors\": {},\n", manifest.meta.num_tensors);
  }
  body += format(" \"files\": {},\n", print_lines(manifest.files));
  body += format(" \"tensors\": {}\n}}", print_lines(manifest.tensors));
  return body;
}

// The body, once every byte of `text` is known to be what print_manifest wrote.
std::string_view checked_body(std::string_view text, const std::string& path) {
  const std::size_t middle = kPrefix.size() + kChecksumDigits;
  const std::size_t body_begin = middle + kMiddle.size();
  const bool framed = text.size() >= body_begin + kSuffix.size() && text.starts_with(kPrefix) &&
                      text.substr(middle).starts_with(kMiddle) && text.ends_with(kSuffix);
  TESSERA_REQUIRE(framed,
                  ErrorCode::kInvalidData,
                  "{}: found {} bytes that do not have the frame of a checkpoint manifest: "
                  "truncated or damaged",
                  path,
                  text.size());
  const std::string_view body = text.substr(body_begin, text.size() - body_begin - kSuffix.size());
  const std::string_view expected = text.substr(kPrefix.size(), kChecksumDigits);
  const std::string found = checksum(body);
  TESSERA_REQUIRE(found == expected,
                  ErrorCode::kInvalidData,
                  "{}: found checksum {}, expected {}: damaged",
                  path,
                  found,
                  expected);
  return body;
}

TensorRole parse_role(const std::string& text) {
  for (const auto& [role, name] : kRoleNames) {
    if (name == text) {
      return role;
    }
  }
  fail(ErrorCode::kInvalidData,
       "role '{}': expected parameter, moment1, moment2, master or buffer",
       text);
}

// More steps than any run has, and more tokens.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 31U;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 62U;

bool is_whole(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() ||
          value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
}

// JSON's conversions would round, wrap, or cut off.
std::int64_t parse_whole(const Json& json,
                         const char* key,
                         std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const Json& value = json.at(key);
  const bool fits =
      is_whole(value) && value.get<std::int64_t>() >= 0 && value.get<std::int64_t>() <= most;
  TESSERA_REQUIRE(fits,
                  ErrorCode::kInvalidData,
                  "{}: found {}, expected a whole number from 0 to {}",
                  key,
                  value.dump(),
                  most);
  return value.get<std::int64_t>();
}

// Their signs are verify()'s.
std::vector<std::int64_t> parse_dims(const Json& json, const char* key) {
  const Json& values = json.at(key);
  TESSERA_REQUIRE(values.is_array() && std::ranges::all_of(values, is_whole),
                  ErrorCode::kInvalidData,
                  "{}: found {}, expected whole numbers",
                  key,
                  values.dump());
  return values.get<std::vector<std::int64_t>>();
}

std::uint64_t parse_seed(const Json& value) {
  TESSERA_REQUIRE(value.is_number_unsigned(),
                  ErrorCode::kInvalidData,
                  "seed: found {}, expected a whole number from 0 to {}",
                  value.dump(),
                  std::numeric_limits<std::uint64_t>::max());
  return value.get<std::uint64_t>();
}

ManifestFile parse_file(const Json& json) {
  ManifestFile file{
      .name = json.at("name"),
      .digest = {.size_bytes = parse_whole(json, "size_bytes"), .xxh3_128 = json.at("xxh3_128")}};
  TESSERA_REQUIRE(!file.name.empty() && file.name.find('/') == std::string::npos,
                  ErrorCode::kInvalidData,
                  "file name '{}': expected a name without '/'",
                  file.name);
  return file;
}

TensorSlice parse_slice(const Json& json) {
  TensorSlice slice{.offset = parse_dims(json, "offset"), .extent = parse_dims(json, "extent")};
  if (json.contains("begin")) {
    slice.begin = parse_whole(json, "begin");
    slice.count = parse_whole(json, "count");
  } else {
    slice.count = tensor_size_bytes(DType::kU8, slice.extent).value_or(-1);
  }
  return slice;
}

ManifestTensor parse_tensor(const Json& json) {
  const std::string dtype_name = json.at("dtype");
  const std::optional<DType> dtype = parse_dtype(dtype_name);
  TESSERA_REQUIRE(dtype,
                  ErrorCode::kInvalidData,
                  "dtype '{}': expected f64, f32, bf16, f16, i64, i32 or u8",
                  dtype_name);
  ManifestTensor tensor{.name = json.at("name"),
                        .role = parse_role(json.at("role")),
                        .dtype = *dtype,
                        .shape = parse_dims(json, "shape"),
                        .slices = {}};
  for (const Json& slice : json.at("slices")) {
    tensor.slices.push_back(
        {.file = slice.at("file"), .key = slice.at("key"), .part = parse_slice(slice)});
  }
  return tensor;
}

Manifest parse_body(const Json& json) {
  TESSERA_REQUIRE(json.at("format") == kFormatName,
                  ErrorCode::kInvalidData,
                  "format {}: expected \"{}\"",
                  json.at("format").dump(),
                  kFormatName);
  const Json& version = json.at("version");
  const std::string found =
      format("\"version\": found {}, expected {} to {}", version.dump(), kOldestVersion, kVersion);
  TESSERA_REQUIRE(version.is_number_integer() && version >= kOldestVersion,
                  ErrorCode::kInvalidData,
                  "{}",
                  found);
  TESSERA_REQUIRE(version <= kVersion,
                  ErrorCode::kUnsupported,
                  "{}: a later Tessera has written this checkpoint: update this one, or go on from "
                  "an older checkpoint with --checkpoint.resume=PATH",
                  found);
  const Json& trainer = json.at("trainer");
  Manifest manifest;
  const std::int64_t step = parse_whole(trainer, "step", kMostSteps);
  manifest.meta = {.step = step,
                   .applied_steps = parse_whole(trainer, "applied_steps", step),
                   .tokens_seen = parse_whole(trainer, "tokens_seen", kMostTokens),
                   .seed = parse_seed(trainer.at("seed")),
                   .model = json.at("model").dump(),
                   .config = json.at("config"),
                   .tokenizer = json.value("tokenizer", ""),
                   .data = json.value("data", ""),
                   .sum_order = json.value("sum_order", ""),
                   .num_tensors = json.value("num_tensors", std::int64_t{0})};
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(parse_file(file));
  }
  for (const Json& tensor : json.at("tensors")) {
    manifest.tensors.push_back(parse_tensor(tensor));
  }
  return manifest;
}

}  // namespace

std::string_view to_string(TensorRole role) {
  return std::find_if(kRoleNames.begin(),
                      kRoleNames.end(),
                      [role](const auto& known) { return known.first == role; })
      ->second;
}

bool is_of_model(TensorRole role) {
  return role == TensorRole::kParameter || role == TensorRole::kBuffer;
}

std::string print_manifest(const Manifest& manifest) {
  try {
    const std::string body = print_body(manifest);
    return format("{}{}{}{}{}", kPrefix, checksum(body), kMiddle, body, kSuffix);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kInvalidArgument, "a checkpoint's model or a name: {}", error.what());
  }
}

Manifest parse_manifest(std::string_view text,
                        const std::filesystem::path& path,
                        ManifestScope scope) {
  const std::string_view body = checked_body(text, path.string());
  return with_context([&] { return format("while reading {}", path.string()); },
                      [&] {
                        try {
                          Manifest manifest = parse_body(Json::parse(body));
                          verify(manifest, scope);
                          return manifest;
                        } catch (const Json::exception& error) {
                          fail(ErrorCode::kInvalidData, "not a manifest: {}", error.what());
                        }
                      });
}

}  // namespace tessera
