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

struct Line {
  std::size_t begin = 0;
  std::string_view text = {};  // without its end
};

// The last one of whole lines; empty where there is none.
Line last_line(std::string_view lines) {
  if (lines.empty()) {
    return {};
  }
  const std::string_view without_end = lines.substr(0, lines.size() - 1);
  const std::size_t begin = without_end.rfind('\n') + 1;
  return {.begin = begin, .text = without_end.substr(begin)};
}

// By level and class; null where nothing is sent.
nlohmann::ordered_json traffic_json(const Traffic& sent) {
  nlohmann::ordered_json json;
  for (const auto& [level, bytes] : sent) {
    for (const TrafficClass traffic_class : kTrafficClasses) {
      json[level][name(traffic_class)] = bytes.at(static_cast<std::size_t>(traffic_class));
    }
  }
  return json;
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
  if (!metrics.comm_bytes.empty()) {
    json["comm_bytes"] = traffic_json(metrics.comm_bytes);
  }
  for (const PipelineRankMetrics& rank : metrics.pipeline_ranks) {
    json["pipeline_ranks"].push_back(
        {{"memory_bytes", rank.memory_bytes}, {"comm_bytes", traffic_json(rank.comm_bytes)}});
  }
  return json.dump();
}

MetricsWriter::MetricsWriter(const std::filesystem::path& path, std::int64_t resume_step)
    : path_(path), file_(open_after(path, resume_step)) {}

void MetricsWriter::write(const StepMetrics& metrics) {
  file_.append(to_json(metrics) + '\n');
  write_owed();
}

void MetricsWriter::flush() {
  file_.flush();
  write_owed();
}

void MetricsWriter::add_validation(std::int64_t step, double loss) {
  owed_.insert_or_assign(step, loss);
  flush();
}

void MetricsWriter::make_up(std::int64_t step, std::string_view line) {
  const std::int64_t found = parse_step(line, 0, "the line that another rank has kept");
  TESSERA_REQUIRE(found == step,
                  ErrorCode::kInvalidData,
                  "the line that another rank has kept for {} is of step {}, expected step {}",
                  path_.string(),
                  found,
                  step);
  const std::string text = read_file(path_);
  const Line last = last_line(text);
  if (last.text.empty() || parse_step(last.text, last.begin, path_.string()) < step) {
    file_.append(std::string(line) + '\n');
  }
}

void MetricsWriter::write_owed() {
  while (!owed_.empty()) {
    const auto [step, loss] = *owed_.begin();
    const std::string text = read_file(path_);
    Line line = last_line(text);
    std::int64_t found = 0;
    while (!line.text.empty() &&
           (found = parse_step(line.text, line.begin, path_.string())) > step) {
      line = last_line(std::string_view(text).substr(0, line.begin));
    }
    if (line.text.empty() || found != step) {
      owed_.erase(step);
      fail(ErrorCode::kInvalidArgument, "{} has no line of step {}", path_.string(), step);
    }
    std::string changed = text;
    changed.replace(line.begin, line.text.size(), with_validation(line.text, loss));
    // In one go: a kill leaves the one file or the other.
    try {
      write_file_atomic(path_, changed);
    } catch (...) {
      reopen();  // it may have its name all the same
      throw;
    }
    reopen();
    owed_.erase(step);
  }
}

void MetricsWriter::reopen() {
  file_ = RecordFile(open_to_append(path_), path_, std::ssize(read_file(path_)));
}

}  // namespace tessera
