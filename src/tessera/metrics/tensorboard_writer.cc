#include "tessera/metrics/tensorboard_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/metrics/event_record.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// TensorBoard reads files whose names have "tfevents" in them, in the order of their names.
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kSuffix = ".tessera";
constexpr std::size_t kDigits = 10;  // of the seconds, until the year 2286

// The seconds in the name of an event file of ours; nothing for other files.
std::optional<std::int64_t> event_file_seconds(const std::string& name) {
  if (name.size() != kPrefix.size() + kDigits + kSuffix.size() || !name.starts_with(kPrefix) ||
      !name.ends_with(kSuffix)) {
    return std::nullopt;
  }
  const std::string digits = name.substr(kPrefix.size(), kDigits);
  if (digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

std::vector<fs::path> event_files(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot look into {}: {}",
                  directory.string(),
                  error.message());
  for (const auto& entry : entries) {
    if (event_file_seconds(entry.path().filename().string())) {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

void require_done(bool done, std::string_view what, const fs::path& path) {
  TESSERA_REQUIRE(
      done, ErrorCode::kDeviceError, "cannot {} {}: {}", what, path.string(), std::strerror(errno));
}

void cut_event_file(const fs::path& path, std::int64_t last_step) {
  const auto [kept, size] = [&] {
    const MappedFile file(path);
    return std::pair(kept_records(file.text(), last_step), file.text().size());
  }();
  if (kept.damage) {
    log_warning(
        format("{} is damaged at byte {}: what follows, which TensorBoard cannot read, is "
               "cut off; metrics.jsonl has all steps",
               path.string(),
               *kept.damage));
  }
  if (!kept.has_steps) {
    require_done(::unlink(path.c_str()) == 0, "remove", path);
  } else if (kept.bytes < size) {
    require_done(::truncate(path.c_str(), static_cast<off_t>(kept.bytes)) == 0, "truncate", path);
  }
}

std::int64_t total(const ClassBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::vector<Scalar> scalars(const StepMetrics& metrics) {
  std::vector<Scalar> values = {
      {.tag = "loss", .value = static_cast<float>(metrics.loss)},
      {.tag = "grad_norm", .value = static_cast<float>(metrics.grad_norm)},
      {.tag = "lr", .value = static_cast<float>(metrics.lr)},
      {.tag = "tokens_per_second", .value = static_cast<float>(metrics.tokens_per_second)},
      {.tag = "memory_bytes", .value = static_cast<float>(metrics.memory_bytes)}};
  if (metrics.validation_loss) {
    values.push_back(
        {.tag = "validation_loss", .value = static_cast<float>(*metrics.validation_loss)});
  }
  for (const auto& [level, bytes] : metrics.comm_bytes) {
    values.push_back({.tag = "comm_bytes/" + level, .value = static_cast<float>(total(bytes))});
  }
  return values;
}

// Behind all that are there, whatever the clock says.
fs::path new_event_file(const fs::path& directory, double wall_time) {
  auto seconds = static_cast<std::int64_t>(wall_time);
  for (const fs::path& path : event_files(directory)) {
    const std::int64_t older = event_file_seconds(path.filename().string()).value_or(0);
    seconds = std::max(seconds, older + 1);
  }
  return directory / format("{}{:0{}}{}", kPrefix, seconds, kDigits, kSuffix);
}

FileDescriptor create(const fs::path& path) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  require_done(file.get() >= 0, "create", path);
  return file;
}

}  // namespace

void cut_event_files(const fs::path& directory, std::int64_t last_step) {
  for (const fs::path& path : event_files(directory)) {
    cut_event_file(path, last_step);
  }
}

TensorBoardWriter::TensorBoardWriter(const fs::path& directory,
                                     std::int64_t resume_step,
                                     double wall_time)
    : path_(new_event_file(directory, wall_time)), file_(create(path_), path_, 0) {
  file_.append(version_record(wall_time) + session_start_record(wall_time, resume_step + 1));
}

void TensorBoardWriter::write(const StepMetrics& metrics, double wall_time) {
  file_.append(scalars_record(wall_time, metrics.step, scalars(metrics)));
}

void TensorBoardWriter::write_validation(std::int64_t step, double loss, double wall_time) {
  const std::array values = {Scalar{.tag = "validation_loss", .value = static_cast<float>(loss)}};
  file_.append(scalars_record(wall_time, step, values));
}

}  // namespace tessera
