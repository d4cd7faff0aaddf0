#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {

// "<run_dir>/exit-<rank>.json": a launcher may hide the exit code of a rank.
std::filesystem::path exit_record_path(const std::filesystem::path& run_dir, std::int64_t rank);

// Those that are in a run directory, in no order. Errors: kDeviceError.
std::vector<std::filesystem::path> exit_records(const std::filesystem::path& run_dir);

// Removes what an earlier run left for process `process` of `num_processes`: its own record, which
// nobody else removes, since another process may already have failed in this run; the first one
// also those of ranks that are no processes. Errors: kDeviceError.
void remove_exit_records(const std::filesystem::path& run_dir,
                         std::int64_t process,
                         std::int64_t num_processes);

// Who leaves a record, and where.
struct RankFiles {
  std::filesystem::path run_dir;
  std::int64_t rank = 0;
};

// Writes it; `step` is the last one that ended, where that is known. A record that cannot be
// written is a warning, since the error itself is what matters.
void write_exit_record(const RankFiles& files,
                       const Error& error,
                       const std::optional<std::int64_t>& step);

// What the rank's record says, without its own rank as context; empty where there is none.
std::string recorded_message(const RankFiles& files);

// Runs `body`; an exception that leaves it leaves the record, with what `step` then is.
template <class Body>
decltype(auto) with_exit_record(const RankFiles& files,
                                const std::optional<std::int64_t>& step,
                                Body&& body) {
  try {
    return body();
  } catch (...) {
    write_exit_record(files, to_error(std::current_exception()), step);
    throw;
  }
}

}  // namespace tessera
