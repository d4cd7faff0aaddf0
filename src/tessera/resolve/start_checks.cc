#include "tessera/resolve/start_checks.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/byte_stream.h"
#include "tessera/resolve/stored_tokenizer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// As any run leaves it.
bool is_run_directory(const fs::path& directory) {
  std::error_code error;
  return fs::exists(directory / "sessions.jsonl", error) ||
         fs::exists(directory / "checkpoints", error);
}

}  // namespace

std::optional<fs::path> start_checkpoint(const RunConfig& config) {
  const std::string& resume = config.checkpoint.resume;
  std::error_code error;
  if (resume == "none" || !fs::exists(config.run.dir, error)) {
    return std::nullopt;
  }
  try {
    return find_checkpoint(resume == "auto" ? config.run.dir : resume);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string other_directory(const RunConfig& config) {
  const fs::path file = config.origins.file;
  const fs::path directory = directory_of(file);
  std::error_code error;
  if (file.empty() || !is_run_directory(directory) ||
      fs::equivalent(directory, config.run.dir, error)) {
    return "";
  }
  return format(
      "{} lies in the directory of a run, but run.dir is {}, where this one trains: "
      "--run.dir={} goes on with that run",
      file.string(),
      config.run.dir,
      directory.string());
}

std::string find_own_tokenizer(const RunConfig& config) {
  const std::string& path = config.tokenizer.path;
  std::error_code error;
  if (path.empty() || fs::status(path, error).type() != fs::file_type::not_found) {
    return path;
  }
  const std::optional<fs::path> start = start_checkpoint(config);
  if (!start) {
    return path;
  }
  const fs::path own = checkpoint_tokenizer(*start, path);
  TESSERA_REQUIRE(own != path,
                  ErrorCode::kInvalidConfig,
                  "{}: {} does not exist, and the run goes on from {}: name the tokenizer that it "
                  "was trained with, which no other one can replace",
                  placed(config, "tokenizer.path"),
                  path,
                  start->string());
  return own.string();
}

void require_enough_bytes(const RunConfig& config) {
  // Normal forms of Unicode may make several tokens of a byte, though hardly ever more than one.
  constexpr std::int64_t kMostTokensOfAByte = 8;
  std::int64_t bytes = 0;
  for (const DataSource& source : data_sources(config.data)) {
    for (const std::string& file : source.files) {
      std::error_code error;
      if (!fs::is_regular_file(file, error) || compression_of(file) != Compression::kNone) {
        return;
      }
      if (fs::file_size(file, error) == 0) {
        return;  // an error of its own, which names it
      }
      bytes += static_cast<std::int64_t>(fs::file_size(file, error));
    }
  }
  TESSERA_REQUIRE(config.data.sequence_length / kMostTokensOfAByte <= bytes,
                  ErrorCode::kInvalidData,
                  "{}: found {}, and the data are of {} bytes: expected a length that they have",
                  placed(config, "data.sequence_length"),
                  config.data.sequence_length,
                  format_grouped(bytes));
}

}  // namespace tessera
