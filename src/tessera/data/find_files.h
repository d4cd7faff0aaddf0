#pragma once

#include <filesystem>
#include <span>
#include <vector>

namespace tessera {

// What names of input files stand for. A name is
//   - a file, or anything else that is there or is not: itself
//   - a folder: the files in it and in the folders below, those in order of their paths, byte by
//     byte; hidden ones (".x") are left out, and links to folders are not followed
//   - a pattern, which has *, ? or [..] and is no file's name: what matches it, in the same order;
//     ** as a part of it stands for any folders, and a folder that matches for its files, but not a
//     link to one. Hidden files match only what begins with a dot.
// Of a Megatron data set of which both files are found (x.bin, x.idx) the first stands for both.
struct FoundFiles {
  std::filesystem::path name;  // as it was given
  std::vector<std::filesystem::path> files;
  bool is_searched = false;  // it is a folder or a pattern
};

// What each of `names` stands for. Errors: kInvalidData for a folder without files, a pattern that
// matches none, and a folder that cannot be read.
std::vector<FoundFiles> find_files(std::span<const std::filesystem::path> names);

}  // namespace tessera
