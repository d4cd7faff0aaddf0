#include "tessera/backend/cuda/algorithm_cache.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"

namespace tessera::cuda {
namespace {

constexpr std::string_view kHeader = "# tessera: fastest algorithms of matrix products, version 1";
constexpr const char* kAdvice =
    "remove it, and algorithms are timed anew (run.time_gemms = false does without)";

}  // namespace

AlgorithmCache::AlgorithmCache(const std::string& machine, std::vector<std::filesystem::path> files)
    : machine_(machine) {
  for (std::filesystem::path& path : files) {
    Entries known = read(path);
    files_.push_back({.path = std::move(path), .known = std::move(known), .changed = {}});
  }
}

std::optional<std::string> AlgorithmCache::use(const std::string& product) {
  const std::string key = key_of(product);
  for (const File& file : files_) {
    if (const auto found = file.known.find(key); found != file.known.end()) {
      std::string algorithm = found->second;
      if (File& first = files_.front(); first.known.try_emplace(key, algorithm).second) {
        first.changed.insert_or_assign(key, algorithm);
      }
      return algorithm;
    }
  }
  return std::nullopt;
}

void AlgorithmCache::add(const std::string& product, const std::string& algorithm) {
  const std::string key = key_of(product);
  for (File& file : files_) {
    if (&file == &files_.front()) {
      file.known.insert_or_assign(key, algorithm);
    } else if (!file.known.try_emplace(key, algorithm).second) {
      continue;
    }
    file.changed.insert_or_assign(key, algorithm);
  }
}

void AlgorithmCache::keep() {
  for (File& file : files_) {
    if (file.changed.empty() || file.is_lost) {
      continue;
    }
    try {
      write_changes(file, &file == &files_.front());
      file.changed.clear();
    } catch (const Error& error) {
      file.is_lost = true;
      log_warning(
          format("the fastest algorithms of matrix products are not kept: {}", error.what()));
    }
  }
}

void AlgorithmCache::write_changes(const File& file, bool replaces) {
  Entries entries = read(file.path);
  for (const auto& [key, algorithm] : file.changed) {
    if (replaces) {
      entries.insert_or_assign(key, algorithm);
    } else {
      entries.try_emplace(key, algorithm);
    }
  }
  write(file.path, entries);
}

AlgorithmCache::Entries AlgorithmCache::read(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return {};
  }
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& problem) {
    log_warning(format("{}: {}", problem.what(), kAdvice));
    return {};
  }
  Entries entries;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    ++number;
    if (number == 1 && line == kHeader) {
      continue;
    }
    const std::size_t last = line.rfind('\t');
    const bool is_entry = number > 1 && last != std::string_view::npos && last + 1 < line.size() &&
                          line.find('\t') != last;
    if (!is_entry) {
      log_warning(format("{}:{}: found {} bytes, expected {}: {}",
                         path.string(),
                         number,
                         line.size(),
                         number == 1 ? "the header of version 1" : "machine, product and algorithm",
                         kAdvice));
      if (number == 1) {
        return {};
      }
      continue;
    }
    entries.insert_or_assign(std::string(line.substr(0, last)), std::string(line.substr(last + 1)));
  }
  return entries;
}

void AlgorithmCache::write(const std::filesystem::path& path, const Entries& entries) {
  std::string text = format("{}\n", kHeader);
  for (const auto& [key, algorithm] : entries) {
    text += format("{}\t{}\n", key, algorithm);
  }
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  write_file_atomic(path, text);
}

std::string AlgorithmCache::key_of(const std::string& product) const {
  return format("{}\t{}", machine_, product);
}

}  // namespace tessera::cuda
