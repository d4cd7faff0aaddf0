#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/base/file.h"

namespace tessera {

// The directory of a run, which is this process's alone as long as this lives.
class RunDirectory {
 public:
  // Takes it, made where it does not exist. Warns where everybody may write there. Errors:
  // kInvalidConfig where another process has it, or for a link in it that others can have put
  // there; kDeviceError.
  explicit RunDirectory(const std::filesystem::path& directory);

  // Whether its name still leads to it.
  bool is_in_place() const;

  // Where it is now; empty where it was removed.
  std::filesystem::path place() const;

 private:
  std::filesystem::path path_;
  FileDescriptor directory_;
  std::optional<FileLock> lock_;
};

// Keeps a copy of the run's tokenizer in its directory: the configured one may lie there, or be
// there no more when the run is looked at. `checksum` is the configured one's.
void keep_tokenizer(const std::filesystem::path& directory,
                    const std::filesystem::path& configured,
                    const std::string& checksum);

}  // namespace tessera
