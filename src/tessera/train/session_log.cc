#include "tessera/train/session_log.h"

#include <array>
#include <ctime>
#include <limits>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/machine.h"

namespace tessera {
namespace {

std::filesystem::path session_log(const std::filesystem::path& run_dir) {
  return run_dir / "sessions.jsonl";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

void append(const std::filesystem::path& path, const nlohmann::ordered_json& line) {
  const FileDescriptor file = open_to_append(path);
  const std::string before = read_file(path);
  // A host may have any bytes as its name.
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  write_all(file, before.empty() || before.back() == '\n' ? text : '\n' + text, path);
}

std::optional<double> predicted_step(const nlohmann::json& line) {
  const auto found = line.find("predicted_step_seconds");
  return found != line.end() ? std::optional(found->get<double>()) : std::nullopt;
}

void add_line(std::vector<Session>& sessions, const nlohmann::json& line) {
  const std::string event = line.at("event");
  if (event == "start") {
    sessions.push_back({.start = {.step = line.at("step"),
                                  .parameters = line.at("parameters"),
                                  .validation = line.value("validation", ""),
                                  .predicted_step = predicted_step(line),
                                  .constants = line.value("predicted_by", "")},
                        .started = line.at("time"),
                        .host = line.at("host"),
                        .cpu = line.at("cpu"),
                        .cores = line.at("cores"),
                        .memory_bytes = line.at("memory_bytes")});
  } else if (event == "end" && !sessions.empty()) {
    SessionEnd end = {.step = line.at("step"), .stopped = line.at("stopped")};
    for (const nlohmann::json& rank : line.value("pipeline", nlohmann::json::array())) {
      end.pipeline.push_back({.expected = rank.at("expected")});
      if (rank.at("measured").is_number()) {
        end.pipeline.back().measured = rank.at("measured").get<double>();
      }
    }
    sessions.back().ended = line.at("time");
    sessions.back().end = end;
  }
}

}  // namespace

void log_session_start(const std::filesystem::path& run_dir, const SessionStart& start) {
  nlohmann::ordered_json line = {{"event", "start"},
                                 {"time", utc_now()},
                                 {"step", start.step},
                                 {"parameters", start.parameters},
                                 {"host", host_name()},
                                 {"cpu", cpu_name()},
                                 {"cores", usable_cores()},
                                 {"memory_bytes", usable_memory_bytes()}};
  if (!start.validation.empty()) {
    line["validation"] = start.validation;
  }
  if (start.predicted_step) {
    line["predicted_step_seconds"] = *start.predicted_step;
    line["predicted_by"] = start.constants;
  }
  append(session_log(run_dir), line);
}

void log_session_end(const std::filesystem::path& run_dir, const SessionEnd& end) {
  nlohmann::ordered_json line = {
      {"event", "end"}, {"time", utc_now()}, {"step", end.step}, {"stopped", end.stopped}};
  for (const PipelineWaiting& rank : end.pipeline) {
    line["pipeline"].push_back(
        {{"measured", rank.measured ? nlohmann::ordered_json(*rank.measured) : nullptr},
         {"expected", rank.expected}});
  }
  append(session_log(run_dir), line);
}

std::vector<Session> read_sessions(const std::filesystem::path& run_dir) {
  std::vector<Session> sessions;
  if (!std::filesystem::exists(session_log(run_dir))) {
    return sessions;
  }
  std::istringstream lines(read_file(session_log(run_dir)));
  for (std::string line; std::getline(lines, line);) {
    try {
      add_line(sessions, nlohmann::json::parse(line));
    } catch (const nlohmann::json::exception&) {
      continue;  // torn
    }
  }
  return sessions;
}

std::int64_t validated_alike_since(const std::vector<Session>& sessions,
                                   const std::string& validation) {
  std::int64_t since = 0;
  std::string last = validation;
  for (const Session& session : sessions) {
    const std::string& said = session.start.validation;
    if (said.empty()) {
      continue;
    }
    since = said == validation && last != validation ? session.start.step : since;
    last = said;
  }
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  return last == validation ? since : kNever;
}

}  // namespace tessera
