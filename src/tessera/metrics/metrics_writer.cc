#include "tessera/metrics/metrics_writer.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

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

// With the lines up to `step`.
RecordFile open_after(const std::filesystem::path& path, std::int64_t step) {
  FileDescriptor file = open_to_append(path);
  const auto kept =
      static_cast<std::int64_t>(kept_bytes(MappedFile(path).text(), step, path.string()));
  TESSERA_REQUIRE(::ftruncate(file.get(), kept) == 0,
                  ErrorCode::kDeviceError,
                  "cannot truncate {}: {}",
                  path.string(),
                  std::strerror(errno));
  return {std::move(file), path, kept};
}

// The line with "validation_loss" where to_json() has it.
std::string with_validation(std::string_view line, double loss) {
  const auto before = nlohmann::ordered_json::parse(line);
  nlohmann::ordered_json json;
  for (const auto& [key, value] : before.items()) {
    if (key == "comm_bytes") {
      json["validation_loss"] = loss;
    }
    if (key != "validation_loss") {
      json[key] = value;
    }
  }
  json["validation_loss"] = loss;
  return json.dump();
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
    : path_(path), file_(open_after(path, resume_step)) {}

void MetricsWriter::write(const StepMetrics& metrics) {
  file_.append(to_json(metrics) + '\n');
}

void MetricsWriter::add_validation(std::int64_t step, double loss) {
  flush();
  const std::string text = read_file(path_);
  const std::string_view lines =
      std::string_view(text).substr(0, text.size() - (text.empty() ? 0 : 1));
  const std::size_t begin = lines.rfind('\n') + 1;
  const std::string_view line = lines.substr(begin);
  const std::int64_t found = lines.empty() ? 0 : parse_step(line, begin, path_.string());
  TESSERA_REQUIRE(found == step,
                  ErrorCode::kInvalidArgument,
                  "the last line of {} is of step {}, expected step {}",
                  path_.string(),
                  found,
                  step);
  // In one go: a kill leaves the one file or the other.
  const std::string changed = text.substr(0, begin) + with_validation(line, loss) + '\n';
  write_file_atomic(path_, changed);
  file_ = RecordFile(open_to_append(path_), path_, std::ssize(changed));
}

}  // namespace tessera
