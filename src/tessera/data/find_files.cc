#include "tessera/data/find_files.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include <fnmatch.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) {
  return path.filename().native().starts_with('.');
}

bool is_pattern(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

// What a folder has, in order of the names.
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder.empty() ? "." : folder, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kInvalidData,
                  "cannot read the folder {}: {}",
                  folder.string(),
                  error.message());
  std::vector<fs::directory_entry> found(fs::begin(entries), fs::end(entries));
  std::ranges::sort(
      found, {}, [](const fs::directory_entry& entry) { return entry.path().filename().native(); });
  return found;
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.is_directory(error);
}

void add_folder(const fs::path& folder, std::vector<fs::path>& files) {
  for (const fs::directory_entry& entry : entries_of(folder)) {
    const fs::path path = folder / entry.path().filename();
    std::error_code error;
    if (is_hidden(path)) {
      continue;
    }
    if (!is_folder(entry)) {
      files.push_back(path);
    } else if (!entry.is_symlink(error)) {
      add_folder(path, files);
    }
  }
}

// The paths below `base` that match the parts of a pattern from `part` on.
void add_matches(const fs::path& base,
                 std::span<const fs::path> parts,
                 std::vector<fs::path>& found) {
  std::error_code error;
  if (parts.empty()) {
    found.push_back(base);
    return;
  }
  const std::string& part = parts.front().native();
  const std::span<const fs::path> rest = parts.subspan(1);
  if (!is_pattern(part)) {
    if (fs::exists(fs::symlink_status(base / part, error))) {
      add_matches(base / part, rest, found);
    }
    return;
  }
  if (!base.empty() && !fs::is_directory(base, error)) {
    return;
  }
  const bool is_any_depth = part == "**";
  if (is_any_depth && !rest.empty()) {
    add_matches(base, rest, found);
  }
  for (const fs::directory_entry& entry : entries_of(base)) {
    const fs::path path = base / entry.path().filename();
    if (is_any_depth && is_folder(entry) && !is_hidden(path) && !entry.is_symlink(error)) {
      add_matches(path, parts, found);
    }
    const bool matches = is_any_depth
                             ? rest.empty() && !is_folder(entry) && !is_hidden(path)
                             : ::fnmatch(part.c_str(), path.filename().c_str(), FNM_PERIOD) == 0;
    const bool is_link_to_folder = is_folder(entry) && entry.is_symlink(error);
    if (matches && !(rest.empty() && is_link_to_folder)) {
      add_matches(path, rest, found);
    }
  }
}

std::vector<fs::path> match(const fs::path& pattern) {
  std::vector<fs::path> parts(pattern.begin(), pattern.end());
  fs::path base;
  if (pattern.is_absolute()) {
    base = pattern.root_path();
    parts.erase(parts.begin());
  }
  std::erase(parts, fs::path());  // of a slash at the end
  std::vector<fs::path> found;
  add_matches(base, parts, found);
  std::vector<fs::path> files;
  for (const fs::path& path : found) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      add_folder(path, files);
    } else {
      files.push_back(path);
    }
  }
  std::ranges::sort(files, {}, [](const fs::path& path) { return path.native(); });
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

// An index whose .bin is there too is no data set of its own.
void drop_indices(std::vector<FoundFiles>& found) {
  std::set<fs::path> all;
  for (const FoundFiles& part : found) {
    all.insert(part.files.begin(), part.files.end());
  }
  for (FoundFiles& part : found) {
    std::erase_if(part.files, [&](const fs::path& path) {
      return path.extension() == ".idx" && all.contains(fs::path(path).replace_extension(".bin"));
    });
  }
}

FoundFiles find(const fs::path& name) {
  std::error_code error;
  const fs::file_status status = fs::status(name, error);
  FoundFiles found{.name = name, .files = {}};
  if (fs::is_directory(status)) {
    found.is_searched = true;
    add_folder(name, found.files);
    std::ranges::sort(found.files, {}, [](const fs::path& path) { return path.native(); });
    TESSERA_REQUIRE(!found.files.empty(),
                    ErrorCode::kInvalidData,
                    "{} is a folder without files, hidden ones left out: expected data in it",
                    name.string());
  } else if (!fs::exists(fs::symlink_status(name, error)) && is_pattern(name.native())) {
    found.is_searched = true;
    found.files = match(name);
    TESSERA_REQUIRE(!found.files.empty(),
                    ErrorCode::kInvalidData,
                    "{} matches no file, expected one at least",
                    name.string());
  } else {
    found.files.push_back(name);
  }
  return found;
}

}  // namespace

std::vector<FoundFiles> find_files(std::span<const fs::path> names) {
  std::vector<FoundFiles> found;
  for (const fs::path& name : names) {
    found.push_back(find(name));
  }
  drop_indices(found);
  return found;
}

}  // namespace tessera
