#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/ir/dtype.h"

namespace tessera {

// A global tensor of the training state. `data` is borrowed, row-major, little-endian.
struct CheckpointTensor {
  std::string name = {};
  TensorRole role = TensorRole::kParameter;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> data = {};
};

struct SaveOptions {
  std::int64_t max_file_bytes = std::int64_t{8} << 30;  // a larger tensor has a file of its own
};

// Writes `directory` (see checkpoint_directory) atomically: everything goes to a temporary
// directory beside it, each file is flushed, the manifest comes last, then a rename. An older
// checkpoint of the same name is replaced. In it:
//   model-00001-of-0000N.safetensors      parameters, under their own names
//   optimizer-00001-of-0000N.safetensors  the rest, under "<role>/<name>"
//   manifest.json                         see manifest.h
// Errors: kDeviceError naming the path and the system's reason (disk full, ...): the temporary is
// removed and every earlier checkpoint stays valid; kInvalidArgument for a repeated (name, role)
// or data that does not match the shape.
void save_checkpoint(const std::filesystem::path& directory,
                     const CheckpointMeta& meta,
                     std::span<const CheckpointTensor> tensors,
                     const SaveOptions& options = {});

enum class Verify {
  kSizes,      // manifest, file sizes and headers
  kChecksums,  // and every byte
};

// An open checkpoint: tensors are views into mapped files and live as long as this object.
class CheckpointReader {
 public:
  // Errors: kInvalidData naming the file, what was found and what was expected: no manifest,
  // missing or truncated file, wrong checksum; kUnsupported for a newer format or tensors in
  // several slices.
  explicit CheckpointReader(const std::filesystem::path& directory,
                            Verify verify = Verify::kChecksums);

  const CheckpointMeta& meta() const { return meta_; }

  std::span<const CheckpointTensor> tensors() const { return tensors_; }

  // The bytes of a tensor. Errors: kInvalidData if the checkpoint does not have it.
  std::span<const std::byte> data(std::string_view name, TensorRole role) const;

  // Checks every byte of every file against the manifest. Errors: kInvalidData naming the file.
  void verify() const;

  // That this is a checkpoint of `model` (JSON text) with just these tensors, whose `data` is not
  // looked at. Errors: kInvalidData naming the first tensor (or else the first key of the model)
  // that differs, found and expected, or train.dtype where a parameter has another one.
  void require_model(std::string_view model, std::span<const CheckpointTensor> expected) const;

 private:
  const CheckpointTensor* find(std::string_view name, TensorRole role) const;

  std::filesystem::path directory_;
  CheckpointMeta meta_;
  std::vector<ManifestFile> manifest_files_;
  std::vector<SafetensorsFile> files_;
  std::vector<CheckpointTensor> tensors_;
  std::map<std::pair<std::string, TensorRole>, std::size_t> index_;
};

// "<parent>/step-00000400"
std::filesystem::path checkpoint_directory(const std::filesystem::path& parent, std::int64_t step);

// The complete checkpoint in `parent` with the highest step; none where there is no checkpoint or
// no such directory. Temporary and other names are ignored; a directory without a manifest is
// skipped with a warning. Damage shows when it is opened: an older one is never taken in silence.
std::optional<std::filesystem::path> find_newest_checkpoint(const std::filesystem::path& parent);

// The checkpoint that a user names: `path` itself, or the newest one of the run directory `path`;
// none where it is neither. Errors: kInvalidData naming the path and the system's reason where it
// cannot be looked at.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& path);

// Renames the complete checkpoints of `parent` after `step` to "abandoned-step-<number>" (with
// ".2", ".3", ... where that name is taken): a run that goes on from `step` takes another way, and
// from then on they are neither found as newest nor pruned. Returns the new paths, newest first.
// Errors: kDeviceError naming the path and the system's reason.
std::vector<std::filesystem::path> set_aside_checkpoints(const std::filesystem::path& parent,
                                                         std::int64_t step);

// Removes all but the newest `keep` complete checkpoints, and what interrupted saves left behind.
// keep = 0 keeps all; `written`, the one just saved, stays in any case. Call it only from the one
// process that writes to `parent`. Errors: kDeviceError naming the path and the system's reason.
void prune_checkpoints(const std::filesystem::path& parent,
                       int keep,
                       const std::filesystem::path& written = {});

}  // namespace tessera
