#include "tessera/backend/cuda/products/algorithm_cache.h"

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

template <class Body>
void for_each_line(std::string_view text, const Body& body) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    body(line);
  }
}

// "machine\tproduct" and the algorithm, where the line is an entry.
std::optional<std::pair<std::string, std::string>> entry_of(std::string_view line) {
  const std::size_t last = line.rfind('\t');
  if (last == std::string_view::npos || last + 1 == line.size() || line.find('\t') == last) {
    return std::nullopt;
  }
  return std::pair(std::string(line.substr(0, last)), std::string(line.substr(last + 1)));
}

}  // namespace

AlgorithmCache::AlgorithmCache(const std::string& machine, std::vector<std::filesystem::path> files)
    : machine_(machine) {
  for (std::filesystem::path& path : files) {
    Entries found = read(path);
    known_.insert(found.begin(), found.end());
    files_.push_back({.path = std::move(path), .known = std::move(found), .changed = {}});
  }
}

std::optional<std::string> AlgorithmCache::use(const std::string& product) {
  const auto found = known_.find(key_of(product));
  if (found == known_.end()) {
    return std::nullopt;
  }
  if (files_.empty()) {
    noted_.insert(*found);
  } else if (files_.front().known.insert(*found).second) {
    files_.front().changed.insert_or_assign(found->first, found->second);
  }
  return found->second;
}

void AlgorithmCache::add(const std::string& product, const std::string& algorithm) {
  add_entry(key_of(product), algorithm);
}

void AlgorithmCache::note(const std::string& product, const std::string& algorithm) {
  noted_.insert_or_assign(key_of(product), algorithm);
}

void AlgorithmCache::take(std::span<const std::string> texts) {
  Entries decided;
  for (const std::string& text : texts) {
    for_each_line(text, [&](std::string_view line) {
      if (auto entry = entry_of(line)) {
        decided.insert(*std::move(entry));
      }
    });
  }
  for (const auto& [key, algorithm] : decided) {
    add_entry(key, algorithm);
  }
}

void AlgorithmCache::add_entry(const std::string& key, const std::string& algorithm) {
  known_.insert_or_assign(key, algorithm);
  for (File& file : files_) {
    if (&file == &files_.front()) {
      const auto [entry, is_new] = file.known.try_emplace(key, algorithm);
      if (!is_new && std::exchange(entry->second, algorithm) == algorithm) {
        continue;
      }
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
  std::error_code error;
  std::filesystem::create_directories(file.path.parent_path(), error);
  write_file_atomic(file.path, format("{}\n{}", kHeader, text_of(entries)));
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
  bool is_ours = true;
  for_each_line(text, [&](std::string_view line) {
    ++number;
    const bool is_header = number == 1;
    const auto entry = is_header ? std::nullopt : entry_of(line);
    if (!is_ours || (is_header && line == kHeader)) {
      return;
    }
    if (entry) {
      entries.insert_or_assign(entry->first, entry->second);
      return;
    }
    is_ours = !is_header;
    log_warning(format("{}:{}: found {} bytes, expected {}: {}",
                       path.string(),
                       number,
                       line.size(),
                       is_header ? "the header of version 1" : "machine, product and algorithm",
                       kAdvice));
  });
  return entries;
}

std::string AlgorithmCache::text_of(const Entries& entries) {
  std::string text;
  for (const auto& [key, algorithm] : entries) {
    text += format("{}\t{}\n", key, algorithm);
  }
  return text;
}

std::string AlgorithmCache::key_of(const std::string& product) const {
  return format("{}\t{}", machine_, product);
}

}  // namespace tessera::cuda
