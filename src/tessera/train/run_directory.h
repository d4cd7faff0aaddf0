#pragma once

#include <filesystem>
#include <string>

#include "tessera/base/file.h"

namespace tessera {

// Takes the run's directory for this process, made where it does not exist. Errors: kInvalidConfig,
// kDeviceError.
FileLock open_run_directory(const std::filesystem::path& directory);

// Keeps a copy of the run's tokenizer in its directory: the configured one may lie there, or be
// there no more when the run is looked at. `checksum` is the configured one's.
void keep_tokenizer(const std::filesystem::path& directory,
                    const std::filesystem::path& configured,
                    const std::string& checksum);

}  // namespace tessera
