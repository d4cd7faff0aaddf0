#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Manifest read_manifest(const fs::path& directory) {
  const fs::path path = directory / "manifest.json";
  std::error_code error;
  // What cannot be looked at is reported with the system's reason when it is opened.
  TESSERA_REQUIRE(fs::status(path, error).type() != fs::file_type::not_found,
                  ErrorCode::kInvalidData,
                  "{} is not a checkpoint: it has no manifest.json",
                  directory.string());
  return parse_manifest(read_file(path), path);
}

void require_checksum(std::span<const std::byte> bytes,
                      const ManifestFile& expected,
                      const fs::path& path) {
  const FileDigest found = digest(bytes);
  TESSERA_REQUIRE(found == expected.digest,
                  ErrorCode::kInvalidData,
                  "{}: found checksum {}, expected {}: damaged; use an earlier checkpoint",
                  path.string(),
                  found.xxh3_128,
                  expected.digest.xxh3_128);
}

SafetensorsFile open_file(const fs::path& path, const ManifestFile& expected, Verify verify) {
  MappedFile file(path);
  TESSERA_REQUIRE(
      static_cast<std::int64_t>(file.bytes().size()) == expected.digest.size_bytes,
      ErrorCode::kInvalidData,
      "{}: found {} bytes, expected {}: truncated or damaged; use an earlier checkpoint",
      path.string(),
      file.bytes().size(),
      expected.digest.size_bytes);
  if (verify == Verify::kChecksums) {
    require_checksum(file.bytes(), expected, path);
  }
  return {std::move(file), path};
}

std::string describe(DType dtype, std::span<const std::int64_t> shape) {
  return format("{} {}", name(dtype), format_shape(shape));
}

// The whole tensor's bytes. `files` is by name.
CheckpointTensor locate(const ManifestTensor& tensor,
                        const std::map<std::string, const SafetensorsFile*>& files) {
  const bool whole = tensor.slices.size() == 1 && tensor.slices[0].extent == tensor.shape &&
                     tensor.slices[0].offset == std::vector<std::int64_t>(tensor.shape.size(), 0);
  TESSERA_REQUIRE(whole,
                  ErrorCode::kUnsupported,
                  "tensor '{}' is saved in {} slices: this build reads whole tensors",
                  tensor.name,
                  tensor.slices.size());
  const ManifestSlice& slice = tensor.slices[0];
  const auto file = files.find(slice.file);
  TESSERA_REQUIRE(file != files.end(),
                  ErrorCode::kInvalidData,
                  "tensor '{}' lies in {}, which the manifest does not list",
                  tensor.name,
                  slice.file);
  const SafetensorsTensor* found = file->second->find(slice.key);
  TESSERA_REQUIRE(found != nullptr && found->dtype == tensor.dtype && found->shape == tensor.shape,
                  ErrorCode::kInvalidData,
                  "tensor '{}' of {}: found {}, expected {}",
                  slice.key,
                  slice.file,
                  found == nullptr ? "none" : describe(found->dtype, found->shape),
                  describe(tensor.dtype, tensor.shape));
  return {.name = tensor.name,
          .role = tensor.role,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .data = found->data};
}

// "'layers.0.wq' (moment1)"
std::string quote(const CheckpointTensor& tensor) {
  return tensor.role == TensorRole::kParameter
             ? format("'{}'", tensor.name)
             : format("'{}' ({})", tensor.name, to_string(tensor.role));
}

// Both sides of the first difference between two JSON values, or an empty place.
struct Difference {
  std::string place;
  std::string found;
  std::string expected;
};

Difference first_difference(const Json& found, const Json& expected) {
  const Json patch = Json::diff(found, expected);
  if (patch.empty()) {
    return {};
  }
  const std::string place = patch[0].at("path");
  const Json::json_pointer pointer(place);
  const auto show = [&](const Json& side) {
    return side.contains(pointer) ? side.at(pointer).dump() : std::string("none");
  };
  return {.place = place, .found = show(found), .expected = show(expected)};
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& directory, Verify verify)
    : directory_(directory) {
  const auto context = [&] { return format("while opening checkpoint {}", directory_.string()); };
  with_context(context, [&] {
    Manifest manifest = read_manifest(directory_);
    meta_ = std::move(manifest.meta);
    manifest_files_ = std::move(manifest.files);
    for (const ManifestFile& file : manifest_files_) {
      files_.push_back(open_file(directory_ / file.name, file, verify));
    }
    std::map<std::string, const SafetensorsFile*> by_name;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      by_name.emplace(manifest_files_[i].name, &files_[i]);
    }
    for (const ManifestTensor& tensor : manifest.tensors) {
      index_.emplace(std::pair(tensor.name, tensor.role), tensors_.size());
      tensors_.push_back(locate(tensor, by_name));
    }
  });
}

const CheckpointTensor* CheckpointReader::find(std::string_view name, TensorRole role) const {
  const auto found = index_.find(std::pair(std::string(name), role));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> CheckpointReader::data(std::string_view name, TensorRole role) const {
  const CheckpointTensor* tensor = find(name, role);
  TESSERA_REQUIRE(tensor != nullptr,
                  ErrorCode::kInvalidData,
                  "checkpoint {} has no {} '{}'",
                  directory_.string(),
                  to_string(role),
                  name);
  return tensor->data;
}

void CheckpointReader::verify() const {
  // The manifest may have changed since it was read.
  read_manifest(directory_);
  for (std::size_t i = 0; i < files_.size(); ++i) {
    require_checksum(files_[i].bytes(), manifest_files_[i], directory_ / manifest_files_[i].name);
  }
}

void CheckpointReader::require_model(std::string_view model,
                                     std::span<const CheckpointTensor> expected) const {
  const auto differ =
      [&](const std::string& place, const std::string& found, const std::string& wanted) {
        fail(ErrorCode::kInvalidData,
             "checkpoint {} belongs to another model: {}: found {}, expected {}",
             directory_.string(),
             place,
             found,
             wanted);
      };
  for (const CheckpointTensor& tensor : expected) {
    const CheckpointTensor* found = find(tensor.name, tensor.role);
    // Parameters have the dtype that the run computes in.
    const bool other_dtype = tensor.role == TensorRole::kParameter && found != nullptr &&
                             found->shape == tensor.shape && found->dtype != tensor.dtype;
    TESSERA_REQUIRE(!other_dtype,
                    ErrorCode::kInvalidData,
                    "checkpoint {} was made with train.dtype = \"{}\", found train.dtype = \"{}\"",
                    directory_.string(),
                    name(found->dtype),
                    name(tensor.dtype));
    if (found == nullptr || found->dtype != tensor.dtype || found->shape != tensor.shape) {
      differ("tensor " + quote(tensor),
             found == nullptr ? "none" : describe(found->dtype, found->shape),
             describe(tensor.dtype, tensor.shape));
    }
  }
  std::set<std::pair<std::string_view, TensorRole>> wanted;
  for (const CheckpointTensor& tensor : expected) {
    wanted.emplace(tensor.name, tensor.role);
  }
  for (const CheckpointTensor& tensor : tensors_) {
    if (!wanted.contains({tensor.name, tensor.role})) {
      differ("tensor " + quote(tensor), describe(tensor.dtype, tensor.shape), "none");
    }
  }
  const Difference difference = first_difference(Json::parse(meta_.model), Json::parse(model));
  if (!difference.place.empty()) {
    differ("model" + difference.place, difference.found, difference.expected);
  }
}

}  // namespace tessera
