#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
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
#include "tessera/checkpoint/read_files.h"
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

// A directory that was renamed, or holds another one's files, is not what its name says.
void require_step(const fs::path& directory, const CheckpointMeta& meta) {
  std::error_code error;
  const fs::path place = fs::canonical(directory, error);  // a link "best" has no step
  const std::optional<std::int64_t> step = checkpoint_step(error ? directory : place);
  TESSERA_REQUIRE(!step || *step == meta.step,
                  ErrorCode::kInvalidData,
                  "{}: found step {}, expected the {} of the directory's name: it holds another "
                  "checkpoint's files",
                  (directory / "manifest.json").string(),
                  meta.step,
                  *step);
}

MappedFile open_file(const fs::path& path, const ManifestFile& expected) {
  MappedFile file(path);
  TESSERA_REQUIRE(
      std::ssize(file.bytes()) == expected.digest.size_bytes,
      ErrorCode::kInvalidData,
      "{}: found {} bytes, expected {}: truncated or damaged; use an earlier checkpoint",
      path.string(),
      file.bytes().size(),
      expected.digest.size_bytes);
  return file;
}

FileRead describe_file(const fs::path& directory, const ManifestFile& file, bool digest) {
  return {.path = directory / file.name,
          .size_bytes = file.digest.size_bytes,
          .segments = {},
          .digest = digest};
}

// Reads them, and compares the digests that were wanted.
void read_checked(std::span<const FileRead> reads, std::span<const ManifestFile> files) {
  const std::vector<std::optional<FileDigest>> digests = read_files(reads);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileDigest found = digests[i].value_or(files[i].digest);
    TESSERA_REQUIRE(found == files[i].digest,
                    ErrorCode::kInvalidData,
                    "{}: found checksum {}, expected {}: damaged; use an earlier checkpoint",
                    reads[i].path.string(),
                    found.xxh3_128,
                    files[i].digest.xxh3_128);
  }
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

// Whether the parameter itself could be this master.
bool is_f32_parameter(const ManifestTensor& master, const CheckpointReader& reader) {
  const ManifestTensor* parameter = reader.find(master.name, TensorRole::kParameter);
  return parameter != nullptr && parameter->dtype == DType::kF32 && master.dtype == DType::kF32 &&
         parameter->shape == master.shape;
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& directory, const ReaderOptions& options)
    : directory_(directory), options_(options) {
  const auto context = [&] { return format("while opening checkpoint {}", directory_.string()); };
  with_context(context, [&] {
    Manifest manifest = read_manifest(directory_);
    meta_ = std::move(manifest.meta);
    require_step(directory_, meta_);
    manifest_files_ = std::move(manifest.files);
    tensors_ = std::move(manifest.tensors);
    std::vector<MappedFile> mapped;
    std::vector<FileRead> reads;
    for (const ManifestFile& file : manifest_files_) {
      mapped.push_back(open_file(directory_ / file.name, file));
      reads.push_back(describe_file(
          directory_, file, options_.verify == Verify::kChecksums && is_own(reads.size())));
    }
    read_checked(reads, manifest_files_);
    for (std::size_t i = 0; i < mapped.size(); ++i) {
      files_.emplace_back(std::move(mapped[i]), reads[i].path);
    }
    locate();
  });
}

bool CheckpointReader::is_own(std::size_t file) const {
  return static_cast<std::int64_t>(file) % options_.num_ranks == options_.rank;
}

void CheckpointReader::locate() {
  std::map<std::string_view, std::size_t> files;
  for (const ManifestFile& file : manifest_files_) {
    files.emplace(file.name, files.size());
  }
  for (const ManifestTensor& tensor : tensors_) {
    index_.emplace(std::pair(tensor.name, tensor.role), pieces_.size());
    std::vector<Piece>& pieces = pieces_.emplace_back();
    for (const ManifestSlice& slice : tensor.slices) {
      pieces.push_back(locate(tensor, slice, files.at(slice.file)));
    }
  }
}

CheckpointReader::Piece CheckpointReader::locate(const ManifestTensor& tensor,
                                                 const ManifestSlice& slice,
                                                 std::size_t file) const {
  const TensorSlice& part = slice.part;
  const std::vector<std::int64_t> shape = is_box(part) ? part.extent : std::vector{part.count};
  const SafetensorsTensor* found = files_[file].find(slice.key);
  TESSERA_REQUIRE(found != nullptr && found->dtype == tensor.dtype && found->shape == shape,
                  ErrorCode::kInvalidData,
                  "tensor '{}' of {}: found {}, expected {}",
                  slice.key,
                  slice.file,
                  found == nullptr ? "none" : describe(found->dtype, found->shape),
                  describe(tensor.dtype, shape));
  Piece piece{.box = {tensor.shape, part.offset, part.extent},
              .begin = part.begin,
              .end = part.begin + part.count,
              .first = 0,
              .last = std::numeric_limits<std::int64_t>::max(),
              .file = file,
              .data = found->data.data()};
  if (part.count > 0) {
    // Padding at an end has no place: the bound stays wide.
    piece.box.for_each_stretch(
        part.begin, 1, [&](std::int64_t whole, auto, auto) { piece.first = whole; });
    piece.box.for_each_stretch(
        piece.end - 1, 1, [&](std::int64_t whole, auto, auto) { piece.last = whole + 1; });
  }
  return piece;
}

const ManifestTensor* CheckpointReader::find(std::string_view name, TensorRole role) const {
  const auto found = index_.find(std::pair(std::string(name), role));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const ManifestTensor& CheckpointReader::at(std::string_view name, TensorRole role) const {
  const ManifestTensor* tensor = find(name, role);
  TESSERA_REQUIRE(tensor != nullptr,
                  ErrorCode::kInvalidData,
                  "checkpoint {} has no {} '{}'",
                  directory_.string(),
                  to_string(role),
                  name);
  return *tensor;
}

void CheckpointReader::for_each_source(const TensorRead& read, const Source& body) const {
  const auto index = static_cast<std::size_t>(read.tensor - tensors_.data());
  const auto element = static_cast<std::int64_t>(size_bytes(read.tensor->dtype));
  const std::int64_t elements =
      tensor_size_bytes(read.tensor->dtype, read.tensor->shape).value_or(0) / element;
  const std::int64_t first = read.first;
  const std::int64_t count = read.size() / element;
  TESSERA_REQUIRE(
      read.size() % element == 0 && first >= 0 && first <= elements && count <= elements - first,
      ErrorCode::kInvalidArgument,
      "{} bytes from element {} of the {} of {}",
      read.size(),
      first,
      elements,
      quote(read.tensor->name, read.tensor->role));
  for (const Piece& piece : pieces_[index]) {
    if (piece.begin == piece.end || piece.last <= first || first + count <= piece.first) {
      continue;
    }
    const std::int64_t begin = std::max(piece.begin, piece.box.lower_bound(first));
    const std::int64_t end = std::min(piece.end, piece.box.lower_bound(first + count));
    piece.box.for_each_stretch(
        begin, end - begin, [&](std::int64_t whole, std::int64_t local, std::int64_t n) {
          body(piece, (local - piece.begin) * element, (whole - first) * element, n * element);
        });
  }
}

void CheckpointReader::read(std::string_view name,
                            TensorRole role,
                            std::int64_t first,
                            std::span<std::byte> out) const {
  for_each_source({.tensor = &at(name, role), .first = first, .out = out},
                  [&](const Piece& piece, std::int64_t from, std::int64_t to, std::int64_t size) {
                    std::memcpy(out.data() + to, piece.data + from, static_cast<std::size_t>(size));
                  });
}

std::vector<std::byte> CheckpointReader::read(std::string_view name, TensorRole role) const {
  const ManifestTensor& tensor = at(name, role);
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(tensor_size_bytes(tensor.dtype, tensor.shape).value_or(0)));
  read(name, role, 0, bytes);
  return bytes;
}

void CheckpointReader::load(std::span<const TensorRead> reads) const {
  std::vector<FileRead> files;
  for (const ManifestFile& file : manifest_files_) {
    files.push_back(describe_file(
        directory_, file, options_.verify == Verify::kOnLoad && is_own(files.size())));
  }
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const TensorRead& read = reads[i];
    for_each_source(
        read, [&](const Piece& piece, std::int64_t from, std::int64_t to, std::int64_t size) {
          FileRead& file = files[piece.file];
          FileRead::Segment segment{.offset =
                                        piece.data - files_[piece.file].bytes().data() + from};
          if (read.take) {
            segment.count = size;
            segment.take = [&read, to](std::span<const std::byte> bytes) mutable {
              read.take(to, bytes);
              to += std::ssize(bytes);
            };
            segment.order = static_cast<std::int64_t>(i) + 1;
          } else {
            segment.out =
                read.out.subspan(static_cast<std::size_t>(to), static_cast<std::size_t>(size));
          }
          file.segments.push_back(std::move(segment));
          file.digest = file.digest || options_.verify == Verify::kWhereRead;
        });
  }
  with_context([&] { return format("while reading checkpoint {}", directory_.string()); },
               [&] { read_checked(files, manifest_files_); });
}

void CheckpointReader::verify() const {
  // The manifest may have changed since it was read.
  read_manifest(directory_);
  std::vector<FileRead> files;
  for (const ManifestFile& file : manifest_files_) {
    files.push_back(describe_file(directory_, file, true));
  }
  read_checked(files, manifest_files_);
}

void CheckpointReader::require_model(std::string_view model,
                                     std::span<const CheckpointTensor> expected,
                                     Scope scope) const {
  const auto is_looked_at = [&](TensorRole role) {
    return scope == Scope::kAll || is_of_model(role);
  };
  const auto differ =
      [&](const std::string& place, const std::string& found, const std::string& wanted) {
        fail(ErrorCode::kInvalidData,
             "checkpoint {} belongs to another model: {}: found {}, expected {}; go on with the "
             "[model] that its run has, or choose another run.dir",
             directory_.string(),
             place,
             found,
             wanted);
      };
  const auto is_state = [](const auto& tensor) { return !is_of_model(tensor.role); };
  TESSERA_REQUIRE(scope != Scope::kAll || std::ranges::none_of(expected, is_state) ||
                      std::ranges::any_of(tensors_, is_state),
                  ErrorCode::kInvalidData,
                  "checkpoint {} has weights alone, as an import makes it, and a run goes on from "
                  "the optimizer's state, too: name it in model.weights, from which a "
                  "new run starts",
                  directory_.string());
  for (const CheckpointTensor& tensor : expected) {
    if (!is_looked_at(tensor.role)) {
      continue;
    }
    const ManifestTensor* found = find(tensor.name, tensor.role);
    // Parameters have the dtype that the run computes in; masters are always f32, and a buffer's
    // dtype is the model's.
    const bool other_dtype = tensor.role != TensorRole::kMaster &&
                             tensor.role != TensorRole::kBuffer && found != nullptr &&
                             found->shape == tensor.shape && found->dtype != tensor.dtype;
    const char* const key =
        tensor.role == TensorRole::kParameter ? "train.dtype" : "optimizer.moments";
    TESSERA_REQUIRE(!other_dtype,
                    ErrorCode::kInvalidData,
                    "checkpoint {} was made with {} = \"{}\", found {} = \"{}\": go on with the "
                    "former, or choose another run.dir",
                    directory_.string(),
                    key,
                    name(found->dtype),
                    key,
                    name(tensor.dtype));
    if (found == nullptr || found->dtype != tensor.dtype || found->shape != tensor.shape) {
      differ("tensor " + quote(tensor.name, tensor.role),
             found == nullptr ? "none" : describe(found->dtype, found->shape),
             describe(tensor.dtype, tensor.shape));
    }
  }
  std::set<std::pair<std::string_view, TensorRole>> wanted;
  for (const CheckpointTensor& tensor : expected) {
    wanted.emplace(tensor.name, tensor.role);
  }
  for (const ManifestTensor& tensor : tensors_) {
    const bool optional = tensor.role == TensorRole::kMaster && is_f32_parameter(tensor, *this);
    if (is_looked_at(tensor.role) && !optional && !wanted.contains({tensor.name, tensor.role})) {
      differ("tensor " + quote(tensor.name, tensor.role),
             describe(tensor.dtype, tensor.shape),
             "none");
    }
  }
  const Difference difference = first_difference(Json::parse(meta_.model), Json::parse(model));
  if (!difference.place.empty()) {
    differ("model" + difference.place, difference.found, difference.expected);
  }
}

}  // namespace tessera
