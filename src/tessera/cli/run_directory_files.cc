#include "tessera/cli/run_directory_files.h"

#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/simulate/read_trace.h"

namespace tessera {
namespace {

// Takes `word` and the number behind it from the front of `text`.
std::optional<std::int64_t> take_number(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) {
    return std::nullopt;
  }
  std::int64_t number = 0;
  const char* const begin = text.data() + word.size();
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  if (error != std::errc() || number < 0) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::string listed_steps(const TraceFiles& files) {
  std::string text;
  for (const auto& [step, of_step] : files) {
    text += format("{}{}", text.empty() ? "" : ", ", step);
  }
  return text;
}

void require_any(const std::filesystem::path& run_dir, const TraceFiles& files) {
  TESSERA_REQUIRE(!files.empty(),
                  ErrorCode::kInvalidConfig,
                  "{} has no trace of a step: tessera train --trace-step=N records one",
                  run_dir.string());
}

// What a run has recorded is of single ranks, each once.
void add_rank(const TraceProcess& process,
              const std::string& file,
              std::map<std::size_t, std::string>& files_of_ranks) {
  TESSERA_REQUIRE(process.num_ranks == 1,
                  ErrorCode::kInvalidData,
                  "{}: found {}, expected a single rank in a trace of a run",
                  file,
                  process.name);
  const auto [known, is_new] = files_of_ranks.try_emplace(process.first_rank, file);
  TESSERA_REQUIRE(is_new,
                  ErrorCode::kInvalidData,
                  "{}: found {}, which {} has too: expected each rank once; remove the file that "
                  "is of another session",
                  file,
                  process.name,
                  known->second);
}

}  // namespace

TraceFiles trace_files(const std::filesystem::path& run_dir) {
  TraceFiles files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, error)) {
    const std::string name = entry.path().filename().string();
    std::string_view rest = name;
    const std::optional<std::int64_t> step = take_number(rest, "trace-");
    if (!step) {
      continue;
    }
    const std::int64_t rank = take_number(rest, "-rank-").value_or(0);
    if (rest == ".json") {
      files[*step][rank] = entry.path();
    }
  }
  return files;
}

RecordedStep recorded_step(const std::filesystem::path& run_dir, std::int64_t step) {
  const TraceFiles files = trace_files(run_dir);
  require_any(run_dir, files);
  const auto found = files.find(step);
  TESSERA_REQUIRE(found != files.end(),
                  ErrorCode::kInvalidConfig,
                  "{}: step {} was not recorded, expected one of those that were: {}",
                  run_dir.string(),
                  step,
                  listed_steps(files));
  RecordedStep recorded = {.step = step, .sources = {}, .trace = {}};
  std::map<std::size_t, std::string> files_of_ranks;
  for (const auto& [first_rank, path] : found->second) {
    const StepTrace own = load_trace(path);
    TESSERA_REQUIRE(!own.processes.empty(),
                    ErrorCode::kInvalidData,
                    "{}: found no rank, expected one or more in a trace of a run",
                    path.string());
    for (const TraceProcess& process : own.processes) {
      add_rank(process, path.string(), files_of_ranks);
      recorded.sources.push_back(path.string());
    }
    if (recorded.trace.processes.empty()) {
      recorded.trace = own;
    } else {
      append_trace(recorded.trace, own);
    }
  }
  return recorded;
}

std::int64_t last_recorded_step(const std::filesystem::path& run_dir) {
  const TraceFiles files = trace_files(run_dir);
  require_any(run_dir, files);
  return files.rbegin()->first;
}

}  // namespace tessera
