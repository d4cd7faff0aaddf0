#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/read_files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensor_pieces.h"
#include "tessera/checkpoint/tensor_size.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

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
  const fs::path named = (directory / "").parent_path();   // without a slash at its end
  const fs::path place = fs::canonical(directory, error);  // of a link of another name, "best"
  std::optional<std::int64_t> step = checkpoint_step(named);
  if (!step && !error) {
    step = checkpoint_step(place);
  }
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
    std::vector<TensorPiece>& pieces = pieces_.emplace_back();
    for (const ManifestSlice& slice : tensor.slices) {
      pieces.push_back(locate_slice(tensor, slice, files_, files.at(slice.file)));
    }
  }
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

void CheckpointReader::for_each_source(const TensorRead& read, const PieceBody& body) const {
  const auto index = static_cast<std::size_t>(read.tensor - tensors_.data());
  for_each_stretch(*read.tensor, pieces_[index], read.first, read.size(), body);
}

void CheckpointReader::read(std::string_view name,
                            TensorRole role,
                            std::int64_t first,
                            std::span<std::byte> out) const {
  for_each_source(
      {.tensor = &at(name, role), .first = first, .out = out},
      [&](const TensorPiece& piece, std::int64_t from, std::int64_t to, std::int64_t size) {
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
        read, [&](const TensorPiece& piece, std::int64_t from, std::int64_t to, std::int64_t size) {
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

}  // namespace tessera
