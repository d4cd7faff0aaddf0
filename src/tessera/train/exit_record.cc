#include "tessera/train/exit_record.h"

#include <new>
#include <string>

#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"

namespace tessera {

Error to_error(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error;
  } catch (const std::filesystem::filesystem_error& error) {
    return {ErrorCode::kDeviceError,
            format("cannot access {}: {}", error.path1().string(), error.code().message())};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory, "the system has no memory left"};
  } catch (const std::exception& error) {
    return {ErrorCode::kInternal, format("unexpected: {}", error.what())};
  }
}

std::filesystem::path exit_record_path(const std::filesystem::path& run_dir) {
  return run_dir / "exit-0.json";
}

void write_exit_record(const std::filesystem::path& run_dir,
                       const Error& error,
                       const std::optional<std::int64_t>& step) {
  try {
    nlohmann::ordered_json record = {{"rank", 0},
                                     {"exit_code", exit_code(error.code())},
                                     {"error", to_string(error.code())},
                                     {"message", error.what()}};
    if (step) {
      record["step"] = *step;
    }
    // A message may quote bytes of a file that are not UTF-8.
    write_file_atomic(
        exit_record_path(run_dir),
        record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
  } catch (const std::exception& failure) {
    log_warning(format("no record of the failure is left: {}", failure.what()));
  }
}

}  // namespace tessera
