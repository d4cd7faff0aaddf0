#include "tessera/base/repository.h"

#include <algorithm>
#include <system_error>

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_within(const fs::path& path, const fs::path& directory) {
  return std::ranges::mismatch(directory, path).in1 == directory.end();
}

}  // namespace

std::optional<fs::path> leads_out(const fs::path& directory, const fs::path& file) {
  std::error_code error;
  fs::path end = fs::canonical(directory / file, error);
  if (error) {
    return std::nullopt;
  }
  const fs::path root = fs::canonical(directory);
  const bool is_snapshot = root.parent_path().filename() == "snapshots";
  if (is_within(end, root) ||
      (is_snapshot && is_within(end, root.parent_path().parent_path() / "blobs"))) {
    return std::nullopt;
  }
  return end;
}

}  // namespace tessera
