#include "tessera/metrics/metrics_writer.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/types.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera {
namespace {

std::int64_t parse_step(std::string_view line, std::size_t offset, const std::string& path) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  TESSERA_REQUIRE(json.is_object() && json.contains("step") && json["step"].is_number_integer(),
                  ErrorCode::kInvalidData,
                  "{}: the line at byte {} is '{}': expected a JSON object with an integer 'step'; "
                  "move the file away to go on",
                  path,
                  offset,
                  line.substr(0, 80));
  return json["step"];
}

// How much of the file is lines up to `last_step`. Steps only rise, so the search starts at the
// end.
std::size_t kept_bytes(std::string_view text, std::int64_t last_step, const std::string& path) {
  std::size_t end = text.rfind('\n') + 1;  // what follows was torn by a kill
  while (end > 0) {
    const std::size_t begin = text.substr(0, end - 1).rfind('\n') + 1;
    if (parse_step(text.substr(begin, end - 1 - begin), begin, path) <= last_step) {
      break;
    }
    end = begin;
  }
  return end;
}

}  // namespace

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json json({{"step", metrics.step},
                               {"loss", metrics.loss},
                               {"grad_norm", metrics.grad_norm},
                               {"lr", metrics.lr},
                               {"tokens", metrics.tokens},
                               {"step_seconds", metrics.step_seconds},
                               {"tokens_per_second", metrics.tokens_per_second},
                               {"memory_bytes", metrics.memory_bytes}});
  if (metrics.validation_loss) {
    json["validation_loss"] = *metrics.validation_loss;
  }
  for (const auto& [level, bytes] : metrics.comm_bytes) {
    for (const TrafficClass traffic_class : kTrafficClasses) {
      json["comm_bytes"][level][name(traffic_class)] =
          bytes.at(static_cast<std::size_t>(traffic_class));
    }
  }
  return json.dump();
}

MetricsWriter::MetricsWriter(const std::filesystem::path& path, std::int64_t resume_step)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  TESSERA_REQUIRE(file_.get() >= 0,
                  ErrorCode::kDeviceError,
                  "cannot open {}: {}",
                  path_.string(),
                  std::strerror(errno));
  const std::size_t kept = kept_bytes(MappedFile(path_).text(), resume_step, path_.string());
  TESSERA_REQUIRE(::ftruncate(file_.get(), static_cast<off_t>(kept)) == 0,
                  ErrorCode::kDeviceError,
                  "cannot truncate {}: {}",
                  path_.string(),
                  std::strerror(errno));
}

void MetricsWriter::write(const StepMetrics& metrics) {
  write_all(file_, to_json(metrics) + '\n', path_);
}

}  // namespace tessera
