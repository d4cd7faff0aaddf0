#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Parameters have the model's own names, so that other tools read their files as weights.
std::string key_of(const CheckpointTensor& tensor) {
  return tensor.role == TensorRole::kParameter
             ? tensor.name
             : format("{}/{}", to_string(tensor.role), tensor.name);
}

void require_unique(std::span<const CheckpointTensor> tensors) {
  std::set<std::pair<std::string_view, TensorRole>> seen;
  for (const CheckpointTensor& tensor : tensors) {
    TESSERA_REQUIRE(seen.emplace(tensor.name, tensor.role).second,
                    ErrorCode::kInvalidArgument,
                    "{} '{}' is in the checkpoint twice",
                    to_string(tensor.role),
                    tensor.name);
  }
}

// The tensors of one kind of file, in runs of at most max_bytes.
std::vector<std::vector<const CheckpointTensor*>> split(std::span<const CheckpointTensor> tensors,
                                                        bool parameters,
                                                        std::int64_t max_bytes) {
  std::vector<std::vector<const CheckpointTensor*>> files;
  std::int64_t filled = 0;
  for (const CheckpointTensor& tensor : tensors) {
    if ((tensor.role == TensorRole::kParameter) != parameters) {
      continue;
    }
    const auto size = static_cast<std::int64_t>(tensor.data.size());
    if (files.empty() || filled > max_bytes - size) {
      files.emplace_back();
      filled = 0;
    }
    files.back().push_back(&tensor);
    filled += size;
  }
  return files;
}

void write_tensor_file(const fs::path& directory,
                       const std::string& name,
                       std::span<const CheckpointTensor* const> tensors,
                       Manifest& manifest) {
  std::vector<SafetensorsTensor> views;
  for (const CheckpointTensor* tensor : tensors) {
    views.push_back({.name = key_of(*tensor),
                     .dtype = tensor->dtype,
                     .shape = tensor->shape,
                     .data = tensor->data});
    manifest.tensors.push_back(
        {.name = tensor->name,
         .role = tensor->role,
         .dtype = tensor->dtype,
         .shape = tensor->shape,
         .slices = {{.file = name,
                     .key = key_of(*tensor),
                     .offset = std::vector<std::int64_t>(tensor->shape.size(), 0),
                     .extent = tensor->shape}}});
  }
  // "pt" is what readers of model files expect of row-major weights.
  const FileDigest written = write_safetensors(directory / name, views, {{"format", "pt"}});
  manifest.files.push_back({.name = name, .digest = written});
}

// Creates `directory` and what is missing above it, each made durable in its parent.
void create_durable_directory(const fs::path& directory) {
  std::error_code error;
  if (directory.empty() || fs::is_directory(directory, error)) {
    return;
  }
  create_durable_directory(directory.parent_path());
  fs::create_directory(directory, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot create directory {}: {}",
                  directory.string(),
                  error.message());
  sync_directory(directory.has_parent_path() ? directory.parent_path() : fs::path("."));
}

// A fresh directory that is removed, with all it holds, at the end of the scope.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(fs::path path) : path_(std::move(path)) {
    remove();
    create_durable_directory(path_);
  }

  ~TemporaryDirectory() { remove(); }

  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const fs::path& path() const { return path_; }

 private:
  void remove() const {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  fs::path path_;
};

// Gives `from` the name `to`. A directory that has the name goes, under a temporary name, to
// `displaced` or is left under `from`.
void publish(const fs::path& from, const fs::path& to, const fs::path& displaced) {
  if (::rename(from.c_str(), to.c_str()) == 0) {
    return;
  }
  if (errno == ENOTEMPTY || errno == EEXIST) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      return;
    }
    // Not every file system can exchange names in one go (NFS cannot).
    if (::rename(to.c_str(), displaced.c_str()) == 0 && ::rename(from.c_str(), to.c_str()) == 0) {
      return;
    }
  }
  fail(ErrorCode::kDeviceError,
       "cannot rename {} to {}: {}",
       from.string(),
       to.string(),
       std::strerror(errno));
}

}  // namespace

void save_checkpoint(const fs::path& directory,
                     const CheckpointMeta& meta,
                     std::span<const CheckpointTensor> tensors,
                     const SaveOptions& options) {
  require_unique(tensors);
  const auto context = [&] {
    return format("while saving checkpoint {}; earlier checkpoints are intact", directory.string());
  };
  with_context(context, [&] {
    const fs::path parent = directory.parent_path();
    const std::string name = directory.filename().string();
    const TemporaryDirectory temporary(parent / format(".tmp-{}-{}", name, ::getpid()));
    const TemporaryDirectory displaced(parent / format(".tmp-{}-{}-old", name, ::getpid()));
    Manifest manifest{.meta = meta, .files = {}, .tensors = {}};
    for (const bool parameters : {true, false}) {
      const auto files = split(tensors, parameters, options.max_file_bytes);
      for (std::size_t i = 0; i < files.size(); ++i) {
        const std::string file = format("{}-{:05}-of-{:05}.safetensors",
                                        parameters ? "model" : "optimizer",
                                        i + 1,
                                        files.size());
        write_tensor_file(temporary.path(), file, files[i], manifest);
      }
    }
    write_file_atomic(temporary.path() / "manifest.json", print_manifest(manifest));
    publish(temporary.path(), directory, displaced.path());
    sync_directory(directory.has_parent_path() ? directory.parent_path() : fs::path("."));
  });
}

}  // namespace tessera
