#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>

#include "tessera/base/error.h"

namespace tessera {

// Any exception as the Error that is reported: one of std::filesystem names the path and the
// system's reason (kDeviceError), one of memory is kOutOfMemory, what nobody expected kInternal.
Error to_error(const std::exception_ptr& exception);

// "<run_dir>/exit-0.json": a launcher may hide the exit code of a rank.
std::filesystem::path exit_record_path(const std::filesystem::path& run_dir);

// Writes it; `step` is the last one that ended, where that is known. A record that cannot be
// written is a warning, since the error itself is what matters.
void write_exit_record(const std::filesystem::path& run_dir,
                       const Error& error,
                       const std::optional<std::int64_t>& step);

// Runs `body`; an exception that leaves it leaves the record, with what `step` then is.
template <class Body>
decltype(auto) with_exit_record(const std::filesystem::path& run_dir,
                                const std::optional<std::int64_t>& step,
                                Body&& body) {
  try {
    return body();
  } catch (...) {
    write_exit_record(run_dir, to_error(std::current_exception()), step);
    throw;
  }
}

}  // namespace tessera
