#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensor_pieces.h"
#include "tessera/ir/dtype.h"

namespace tessera {

class DirectoryRemover;

// A global tensor of the training state, or the part of it that a rank holds. `data` is borrowed,
// row-major, little-endian: the slice's elements.
struct CheckpointTensor {
  std::string name = {};
  TensorRole role = TensorRole::kParameter;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape = {};   // of the whole
  std::optional<TensorSlice> slice = {};  // none: all of it
  std::span<const std::byte> data = {};
  std::optional<FileSource> source = {};  // of `data`, where they are mapped
};

// Of its elements here, by dtype, shape and slice.
std::size_t saved_bytes(const CheckpointTensor& tensor);

struct SaveOptions {
  std::int64_t max_file_bytes = std::int64_t{8} << 30;  // a larger tensor has a file of its own
};

// Writes `directory` (see checkpoint_directory) atomically, as the only rank: CheckpointSaver in
// one call, without its copy.
// Errors: kDeviceError naming the path and the system's reason (disk full, ...): the temporary is
// removed and every earlier checkpoint stays valid; kInvalidArgument for a repeated (name, role),
// data that does not match the shape, or tensors that are not whole.
void save_checkpoint(const std::filesystem::path& directory,
                     const CheckpointMeta& meta,
                     std::span<const CheckpointTensor> tensors,
                     const SaveOptions& options = {});

// How far an opened checkpoint is checked.
enum class Verify {
  kSizes,      // manifest, file sizes and headers
  kOnLoad,     // that, and the rest when load() reads it
  kWhereRead,  // that, and when load() reads anything of a file, the rest of this file
  kChecksums,  // every byte, before anything is given out
};

// With several ranks each checks the checksum of every num_ranks-th file: together they check all,
// and damage that one of them finds stops the others only once it tells them.
struct ReaderOptions {
  Verify verify = Verify::kChecksums;
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
};

// Elements of a tensor, in row-major order, and where they go.
struct TensorRead {
  const ManifestTensor* tensor = nullptr;  // of the reader
  std::int64_t first = 0;
  std::span<std::byte> out = {};  // as long as they are
  // Or `num_bytes` of them to `take`, some at a time, with the place of the first byte among them,
  // from the thread that calls load(). Those of earlier reads come first, as far as the files have
  // them in this order: a checkpoint of tensors in one order gives them little by little.
  std::int64_t num_bytes = 0;
  std::function<void(std::int64_t at, std::span<const std::byte>)> take = {};

  std::int64_t size() const { return take ? num_bytes : std::ssize(out); }
};

// An open checkpoint, whatever the layout it was saved under. Its files are mapped.
class CheckpointReader {
 public:
  // Errors: kInvalidData naming the file, what was found and what was expected: no manifest,
  // missing or truncated file, wrong checksum; kUnsupported for a newer format.
  explicit CheckpointReader(const std::filesystem::path& directory,
                            const ReaderOptions& options = {});

  const std::filesystem::path& directory() const { return directory_; }

  const CheckpointMeta& meta() const { return meta_; }

  // The global tensors, with the files and slices that hold them.
  std::span<const ManifestTensor> tensors() const { return tensors_; }

  std::span<const ManifestFile> files() const { return manifest_files_; }

  // Null where the checkpoint does not have it.
  const ManifestTensor* find(std::string_view name, TensorRole role) const;

  // Copies elements [first, first + n) of a tensor, in row-major order, to `out`, which has their
  // size; reads nothing else. Errors: kInvalidData if the checkpoint does not have the tensor;
  // kInvalidArgument for elements that it does not have.
  void read(std::string_view name,
            TensorRole role,
            std::int64_t first,
            std::span<std::byte> out) const;

  // The whole tensor. Errors: as above.
  std::vector<std::byte> read(std::string_view name, TensorRole role) const;

  // All of these in one pass through the files, past the page cache: the fastest way to much of a
  // checkpoint. With kOnLoad it reads this rank's share of the files whole and checks them, with
  // kWhereRead those that it reads anything of; what is wrong is known when all is given out.
  // Errors: as read(), and kInvalidData for a wrong checksum, when `out` may be filled.
  void load(std::span<const TensorRead> reads) const;

  // Checks every byte of every file against the manifest. Errors: kInvalidData naming the file.
  void verify() const;

 private:
  const ManifestTensor& at(std::string_view name, TensorRole role) const;
  void locate();
  void for_each_source(const TensorRead& read, const PieceBody& body) const;

  // Whether a file is among those whose checksum this rank checks.
  bool is_own(std::size_t file) const;

  std::filesystem::path directory_;
  ReaderOptions options_;
  CheckpointMeta meta_;
  std::vector<ManifestFile> manifest_files_;
  std::vector<SafetensorsFile> files_;
  std::vector<ManifestTensor> tensors_;
  std::vector<std::vector<TensorPiece>> pieces_;  // of each tensor
  std::map<std::pair<std::string, TensorRole>, std::size_t> index_;
};

// "<parent>/step-00000400"
std::filesystem::path checkpoint_directory(const std::filesystem::path& parent, std::int64_t step);

// The step that such a name says; none for any other name.
std::optional<std::int64_t> checkpoint_step(const std::filesystem::path& directory);

// The complete checkpoint in `parent` with the highest step, of those before `end` where that is
// given; none where there is no checkpoint or no such directory. Temporary and other names are
// ignored; a directory without a manifest is skipped with a warning. Damage shows when it is
// opened: an older one is never taken in silence.
std::optional<std::filesystem::path> find_newest_checkpoint(
    const std::filesystem::path& parent, std::optional<std::int64_t> end = std::nullopt);

// The same by its name alone: it may lack a manifest.
std::optional<std::filesystem::path> find_newest_name(
    const std::filesystem::path& parent, std::optional<std::int64_t> end = std::nullopt);

// How many complete ones there are.
std::int64_t count_checkpoints(const std::filesystem::path& parent);

// What is wrong with a checkpoint, of which every byte is read; empty where nothing is. Errors:
// kInvalidData where this process may not read it; kUnsupported for a newer format.
std::string find_damage(const std::filesystem::path& checkpoint);

// Renames it to "damaged-step-<number>", as set_aside_checkpoints() does, and returns that.
std::filesystem::path set_aside_damaged(const std::filesystem::path& checkpoint);

// The checkpoint that a user names: `path` itself, or the newest one of the run directory `path`,
// or of its folder of checkpoints; none where it is none of these. Errors: kInvalidConfig for a
// file; kInvalidData naming the path and the system's reason where it cannot be looked at.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& path);

// Renames the complete checkpoints of `parent` after `step` to "abandoned-step-<number>" (with
// ".2", ".3", ... where that name is taken): a run that goes on from `step` takes another way, and
// from then on they are neither found as newest nor pruned. Returns the new paths, newest first.
// Errors: kDeviceError naming the path and the system's reason.
std::vector<std::filesystem::path> set_aside_checkpoints(const std::filesystem::path& parent,
                                                         std::int64_t step);

// Makes "<parent>/best" a symbolic link to the complete checkpoint with the lowest loss, the
// earlier of equals; `losses` are by step. Where no complete checkpoint has a loss that is a
// number, a link to a checkpoint that is there stays, any other goes. Replaced at once, so that a
// reader always finds one. Call it as prune_checkpoints(). Errors: kDeviceError as above.
void link_best_checkpoint(const std::filesystem::path& parent,
                          const std::map<std::int64_t, double>& losses);

// Removes all but the newest `keep` complete checkpoints; a save under way is left alone. keep = 0
// keeps all; `written`, the one just saved, and what "<parent>/best" links to stay in any case.
// Call it only from one rank of the run that writes to `parent`. Errors: kDeviceError naming the
// path and the system's reason. They lose their names at once, and `remover` does the rest.
void prune_checkpoints(const std::filesystem::path& parent,
                       int keep,
                       const std::filesystem::path& written,
                       DirectoryRemover& remover);

// Makes checkpoints of the saves in `parent` that all ranks have written and that were interrupted
// before they had their names. Returns their directories; a warning names the parts that others
// lack. Call it as remove_interrupted_saves().
std::vector<std::filesystem::path> finish_interrupted_saves(const std::filesystem::path& parent);

// Removes what interrupted saves and removals left in `parent`. Call it from one rank of the run
// that writes there, before any rank saves. Errors: kDeviceError as above.
void remove_interrupted_saves(const std::filesystem::path& parent, DirectoryRemover& remover);

}  // namespace tessera
