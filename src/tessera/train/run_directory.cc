#include "tessera/train/run_directory.h"

#include <system_error>

#include "tessera/base/error.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/train/resume.h"

namespace tessera {

FileLock open_run_directory(const std::filesystem::path& directory) {
  TESSERA_REQUIRE(!directory.empty(),
                  ErrorCode::kInvalidConfig,
                  "run.dir is empty, expected a directory for the run's files");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot create run.dir {}: {}",
                  directory.string(),
                  error.message());
  return {directory / "lock", format("the run directory {}", directory.string())};
}

void keep_tokenizer(const std::filesystem::path& directory,
                    const std::filesystem::path& configured,
                    const std::string& checksum) {
  const std::filesystem::path copy = tokenizer_copy(directory);
  std::error_code error;
  if (!std::filesystem::exists(copy, error) || tokenizer_checksum(copy) != checksum) {
    write_file_atomic(copy, read_tokenizer_file(configured));
  }
}

}  // namespace tessera
