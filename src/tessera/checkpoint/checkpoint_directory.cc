#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/directory_remover.h"
#include "tessera/checkpoint/save_directory.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kAbandonedPrefix = "abandoned-";
constexpr std::string_view kDamagedPrefix = "damaged-";
constexpr std::string_view kDoomedPrefix = ".tmp-removed-";
constexpr std::string_view kBest = "best";

struct Found {
  std::int64_t step = 0;
  fs::path path;
};

std::optional<std::int64_t> parse_step(std::string_view name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size() && step >= 0;
  return whole ? std::optional(step) : std::nullopt;
}

std::vector<fs::path> entries_of(const fs::path& parent) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(parent, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    entries.push_back(it->path());
  }
  TESSERA_REQUIRE(!error || error == std::errc::no_such_file_or_directory,
                  ErrorCode::kDeviceError,
                  "cannot list {}: {}",
                  parent.string(),
                  error.message());
  return entries;
}

// Newest first. The name only appears once everything inside is durable, manifest included.
std::vector<Found> complete_checkpoints(const fs::path& parent) {
  std::vector<Found> found;
  for (const fs::path& path : entries_of(parent)) {
    const std::optional<std::int64_t> step = parse_step(path.filename().string());
    if (!step) {
      continue;
    }
    std::error_code error;
    if (fs::exists(path / "manifest.json", error)) {
      found.push_back({.step = *step, .path = path});
    } else {
      log_warning(format("{} is skipped: it has no manifest.json", path.string()));
    }
  }
  std::sort(
      found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step > b.step; });
  return found;
}

void rename_directory(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot rename {} to {}: {}",
                  from.string(),
                  to.string(),
                  error.message());
}

// The name of `checkpoint` with `prefix` before it, or that with a number where it is taken.
fs::path free_name(const fs::path& checkpoint, std::string_view prefix) {
  const std::string name = format("{}{}", prefix, checkpoint.filename().string());
  fs::path path = checkpoint.parent_path() / name;
  std::error_code ignored;
  for (int i = 2; fs::exists(path, ignored); ++i) {
    path.replace_filename(format("{}.{}", name, i));
  }
  return path;
}

void remove_entry(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  TESSERA_REQUIRE(
      !error, ErrorCode::kDeviceError, "cannot remove {}: {}", path.string(), error.message());
}

// The name that the link to the best checkpoint holds; empty where there is none.
fs::path best_name(const fs::path& parent) {
  std::error_code none;
  return fs::read_symlink(parent / kBest, none);
}

}  // namespace

std::optional<std::int64_t> checkpoint_step(const fs::path& directory) {
  return parse_step(directory.filename().string());
}

fs::path checkpoint_directory(const fs::path& parent, std::int64_t step) {
  return parent / format("{}{:08}", kPrefix, step);
}

std::optional<fs::path> find_newest_checkpoint(const fs::path& parent,
                                               std::optional<std::int64_t> end) {
  for (const Found& found : complete_checkpoints(parent)) {
    if (!end || found.step < *end) {
      return found.path;
    }
  }
  return std::nullopt;
}

std::optional<fs::path> find_newest_name(const fs::path& parent, std::optional<std::int64_t> end) {
  std::optional<fs::path> newest;
  for (const fs::path& path : entries_of(parent)) {
    const std::optional<std::int64_t> step = checkpoint_step(path);
    if (step && (!end || *step < *end) && (!newest || *step > *checkpoint_step(*newest))) {
      newest = path;
    }
  }
  return newest;
}

std::int64_t count_checkpoints(const fs::path& parent) {
  return std::ssize(complete_checkpoints(parent));
}

std::string find_damage(const fs::path& checkpoint) {
  // What others own is not damaged.
  std::vector<fs::path> paths = {checkpoint, checkpoint / "manifest.json"};
  std::error_code unreadable;
  for (fs::directory_iterator it(checkpoint, unreadable);
       !unreadable && it != fs::directory_iterator();
       it.increment(unreadable)) {
    paths.push_back(it->path());
  }
  for (const fs::path& path : paths) {
    TESSERA_REQUIRE(::access(path.c_str(), R_OK) == 0 || errno != EACCES,
                    ErrorCode::kInvalidData,
                    "cannot read {}: {}",
                    path.string(),
                    std::strerror(errno));
  }
  try {
    const CheckpointReader whole(checkpoint);
    return "";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidData) {
      throw;
    }
    return error.what();
  }
}

fs::path set_aside_damaged(const fs::path& checkpoint) {
  const fs::path aside = free_name(checkpoint, kDamagedPrefix);
  rename_directory(checkpoint, aside);
  sync_directory(checkpoint.parent_path());
  return aside;
}

std::optional<fs::path> find_checkpoint(const fs::path& path) {
  std::error_code error;
  const fs::file_status named = fs::status(path, error);
  TESSERA_REQUIRE(!fs::exists(named) || fs::is_directory(named),
                  ErrorCode::kInvalidConfig,
                  "{} is {}, expected a run directory or a checkpoint",
                  path.string(),
                  fs::is_regular_file(named) ? "a file" : "no directory");
  const fs::path manifest = path / "manifest.json";
  const fs::file_status status = fs::status(manifest, error);
  if (fs::exists(status)) {
    return path;
  }
  TESSERA_REQUIRE(status.type() == fs::file_type::not_found,
                  ErrorCode::kInvalidData,
                  "cannot open {}: {}",
                  manifest.string(),
                  error.message());
  const std::optional<fs::path> of_run = find_newest_checkpoint(path / "checkpoints");
  return of_run ? of_run : find_newest_checkpoint(path);
}

std::vector<fs::path> set_aside_checkpoints(const fs::path& parent, std::int64_t step) {
  std::vector<fs::path> renamed;
  for (const Found& found : complete_checkpoints(parent)) {
    if (found.step > step) {
      renamed.push_back(free_name(found.path, kAbandonedPrefix));
      rename_directory(found.path, renamed.back());
    }
  }
  if (!renamed.empty()) {
    sync_directory(parent);
  }
  return renamed;
}

void remove_interrupted_saves(const fs::path& parent, DirectoryRemover& remover) {
  for (const fs::path& path : entries_of(parent)) {
    std::error_code error;
    if (!path.filename().string().starts_with(kTemporaryPrefix)) {
      continue;
    }
    if (fs::is_directory(fs::symlink_status(path, error))) {
      remover.remove(path);
    } else {
      remove_entry(path);
    }
  }
}

void link_best_checkpoint(const fs::path& parent, const std::map<std::int64_t, double>& losses) {
  const std::vector<Found> found = complete_checkpoints(parent);
  const Found* best = nullptr;
  double lowest = std::numeric_limits<double>::infinity();
  for (const Found& checkpoint : found) {
    const auto loss = losses.find(checkpoint.step);
    if (loss != losses.end() && std::isfinite(loss->second) && loss->second <= lowest) {
      lowest = loss->second;
      best = &checkpoint;
    }
  }
  const fs::path link = parent / kBest;
  const fs::path before = best_name(parent);
  std::error_code error;
  if (best == nullptr) {
    if (!before.empty() && !fs::exists(link, error)) {
      remove_entry(link);
    }
    return;
  }
  if (before == best->path.filename()) {
    return;
  }
  const fs::path made = parent / format("{}{}", kTemporaryPrefix, kBest);
  remove_entry(made);  // what a kill has left
  fs::create_directory_symlink(best->path.filename(), made, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot link {} to {}: {}",
                  link.string(),
                  best->path.string(),
                  error.message());
  rename_directory(made, link);
  sync_directory(parent);
}

void prune_checkpoints(const fs::path& parent,
                       int keep,
                       const fs::path& written,
                       DirectoryRemover& remover) {
  const std::vector<Found> found = complete_checkpoints(parent);
  const fs::path best = best_name(parent);
  const std::size_t kept = keep == 0 ? found.size() : static_cast<std::size_t>(keep);
  std::exception_ptr failure;
  for (std::size_t i = kept; i < found.size(); ++i) {
    if (found[i].path == written || found[i].path.filename() == best) {
      continue;
    }
    // Under a temporary name first, so that a kill half-way leaves nothing that looks complete.
    const fs::path doomed = free_name(found[i].path, kDoomedPrefix);
    try {
      rename_directory(found[i].path, doomed);
      remover.remove(doomed);
    } catch (const Error&) {
      failure = failure ? failure : std::current_exception();
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace tessera
