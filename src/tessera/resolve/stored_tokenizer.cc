#include "tessera/resolve/stored_tokenizer.h"

#include <span>
#include <system_error>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/tokenizer/tokenizer_files.h"

namespace tessera {

namespace fs = std::filesystem;

std::string tokenizer_checksum(const fs::path& tokenizer) {
  const std::string bytes = read_tokenizer_file(tokenizer);
  return digest(std::as_bytes(std::span(bytes))).xxh3_128;
}

fs::path tokenizer_copy(const fs::path& run_dir) {
  return run_dir / "tokenizer.json";
}

fs::path checkpoint_tokenizer(const fs::path& checkpoint, const fs::path& configured) {
  std::error_code error;
  // Absolute and without "." and links, so that "above" means the run directory.
  const fs::path place = fs::canonical(checkpoint, error);
  if (error) {
    return configured;
  }
  const fs::path own = tokenizer_copy(place);
  fs::path run = tokenizer_copy(place.parent_path().parent_path());
  const bool has_own = fs::is_regular_file(own, error);
  const bool has_run = fs::is_regular_file(run, error);
  // The run's outlives the checkpoint, and has the run's other files beside it.
  if (has_run && (!has_own || read_tokenizer_file(run) == read_tokenizer_file(own))) {
    return run;
  }
  return has_own ? own : configured;
}

void require_own_tokenizer(const fs::path& checkpoint, const CheckpointMeta& meta) {
  const fs::path own = tokenizer_copy(checkpoint);
  std::error_code error;
  if (meta.tokenizer.empty() || !fs::exists(own, error)) {
    return;
  }
  const std::string found = tokenizer_checksum(own);
  TESSERA_REQUIRE(
      found == meta.tokenizer,
      ErrorCode::kInvalidData,
      "{}: found checksum {}, expected {}: damaged, or changed since the checkpoint was "
      "written; put the run's tokenizer in its place",
      own.string(),
      found,
      meta.tokenizer);
}

void require_tokenizer(const fs::path& tokenizer,
                       const fs::path& checkpoint,
                       const CheckpointMeta& meta) {
  if (meta.tokenizer.empty()) {
    return;
  }
  const std::string found = tokenizer_checksum(tokenizer);
  if (found == meta.tokenizer) {
    return;
  }
  // Its copies, in the run's directory, where the checkpoint is one of a run's, and beside it.
  std::error_code error;
  const fs::path place = fs::canonical(checkpoint, error);
  std::vector<fs::path> places;
  if (!error && place.parent_path().filename() == "checkpoints") {
    places.push_back(tokenizer_copy(place.parent_path().parent_path()));
  }
  if (!error) {
    places.push_back(tokenizer_copy(place));
  }
  std::string copies;
  for (const fs::path& copy : places) {
    std::error_code absent;
    if (!fs::is_regular_file(copy, absent)) {
      continue;
    }
    if (tokenizer_checksum(copy) == meta.tokenizer) {
      copies = format("; that one is {}: name it in tokenizer.path", copy.string());
      break;
    }
    copies += format("; the copy {} is damaged or was changed", copy.string());
  }
  fail(ErrorCode::kInvalidData,
       "{} is not the tokenizer that {} was trained with: found checksum {}, expected {}{}",
       tokenizer.string(),
       checkpoint.string(),
       found,
       meta.tokenizer,
       copies);
}

}  // namespace tessera
