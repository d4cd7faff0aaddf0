#include "tessera/launch/exit_record.h"

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"

namespace tessera {

namespace {

// The rank of "exit-<rank>.json".
std::optional<std::int64_t> rank_of_record(const std::string& name) {
  constexpr std::string_view kBegin = "exit-";
  constexpr std::string_view kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) {
    return std::nullopt;
  }
  const char* const last = name.data() + name.size() - kEnd.size();
  std::int64_t rank = 0;
  const auto [end, error] = std::from_chars(name.data() + kBegin.size(), last, rank);
  const bool is_rank = error == std::errc() && end == last && rank >= 0;
  return is_rank ? std::optional(rank) : std::nullopt;
}

}  // namespace

std::filesystem::path exit_record_path(const std::filesystem::path& run_dir, std::int64_t rank) {
  return run_dir / format("exit-{}.json", rank);
}

std::vector<std::filesystem::path> exit_records(const std::filesystem::path& run_dir) {
  std::vector<std::filesystem::path> records;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir)) {
    if (rank_of_record(entry.path().filename().string())) {
      records.push_back(entry.path());
    }
  }
  return records;
}

void remove_exit_records(const std::filesystem::path& run_dir,
                         std::int64_t process,
                         std::int64_t num_processes) {
  for (const std::filesystem::path& record : exit_records(run_dir)) {
    const std::int64_t rank = rank_of_record(record.filename().string()).value_or(process);
    if (rank != process && (process != 0 || rank < num_processes)) {
      continue;
    }
    std::error_code error;
    std::filesystem::remove(record, error);
    TESSERA_REQUIRE(
        !error, ErrorCode::kDeviceError, "cannot remove {}: {}", record.string(), error.message());
  }
}

void write_exit_record(const RankFiles& files,
                       const Error& error,
                       const std::optional<std::int64_t>& step) {
  try {
    nlohmann::ordered_json record = {{"rank", files.rank},
                                     {"exit_code", exit_code(error.code())},
                                     {"error", to_string(error.code())},
                                     {"message", error.what()}};
    if (step) {
      record["step"] = *step;
    }
    // A message may quote bytes of a file that are not UTF-8.
    write_file_atomic(
        exit_record_path(files.run_dir, files.rank),
        record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
  } catch (const std::exception& failure) {
    log_warning(format("no record of the failure is left: {}", failure.what()));
  }
}

std::string recorded_message(const RankFiles& files) {
  const std::filesystem::path path = exit_record_path(files.run_dir, files.rank);
  std::error_code absent;
  if (!std::filesystem::exists(path, absent)) {
    return "";
  }
  try {
    const std::string message = nlohmann::json::parse(read_file(path)).at("message");
    const std::string rank = format(" (rank {})", files.rank);
    return message.ends_with(rank) ? message.substr(0, message.size() - rank.size()) : message;
  } catch (const std::exception&) {
    return "";  // it is being written, or nobody can read it
  }
}

}  // namespace tessera
