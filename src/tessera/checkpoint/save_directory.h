#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/directory_remover.h"

namespace tessera {

// Where ranks write what becomes a checkpoint, and the way from there to its name.

// Before the name of a directory that is being written or removed.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

// Names one start of a run or of a program, on whatever machine: "<host>-<process>-<random>".
std::string make_launch_name();

// ".tmp-step-00000400.<launch>.<attempt>" beside `directory`: what two launches write, or one of
// them twice, never meets, though the first may still be writing when the second begins.
std::filesystem::path save_directory(const std::filesystem::path& directory,
                                     std::string_view launch,
                                     std::int64_t attempt);

// The checkpoint that such a directory is to become.
std::filesystem::path saved_checkpoint(const std::filesystem::path& save);

// A rank's manifest of what it wrote there.
std::string part_name(std::int64_t rank, std::int64_t num_ranks);

// Leaves the word that a rank, on its way out, has no part for the save, and why. Errors:
// kDeviceError naming the path and the system's reason.
void note_no_part(const std::filesystem::path& save,
                  std::int64_t rank,
                  std::int64_t num_ranks,
                  const std::string& reason);

// How far the ranks are that write there without a word to each other.
struct SaveProgress {
  std::set<std::int64_t> written;  // parts that are whole
  std::set<std::int64_t> without;  // that will never come
  std::uintmax_t bytes = 0;        // of all files so far

  friend bool operator==(const SaveProgress&, const SaveProgress&) = default;
};

SaveProgress look_at_save(const std::filesystem::path& save, std::int64_t num_ranks);

// "while saving checkpoint ...".
std::string saving(const std::filesystem::path& directory);

// Makes the checkpoint `directory` of what all ranks have written to `save`: their parts become its
// manifest, every file that it lists is there and has its size, and the directory gets its name. An
// older checkpoint of that name goes. Errors: kDeviceError naming the path and the system's reason,
// or a part or file that is missing; kInvalidData where the parts do not make up every tensor, or
// other tensors than `expected` (of which an empty one expects nothing), or are of another step
// than the name says.
void publish(const std::filesystem::path& save,
             const std::filesystem::path& directory,
             std::int64_t num_ranks,
             DirectoryRemover& remover,
             std::span<const CheckpointTensor> expected = {});

// Removes, beside `directory`, what programs of this machine that have ended left of saves of it.
void remove_left_saves(const std::filesystem::path& directory);

}  // namespace tessera
