#include "tessera/base/error.h"

#include <filesystem>
#include <new>
#include <system_error>

namespace tessera {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kInvalidConfig:
      return "invalid config";
    case ErrorCode::kInvalidData:
      return "invalid data";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kDeviceError:
      return "device error";
    case ErrorCode::kPeerFailure:
      return "peer failure";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kDiverged:
      return "diverged";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kInvalidConfig:
    case ErrorCode::kUnsupported:
      return 2;
    case ErrorCode::kInvalidData:
      return 3;
    case ErrorCode::kOutOfMemory:
      return 4;
    case ErrorCode::kDeviceError:
    case ErrorCode::kPeerFailure:
    case ErrorCode::kTimeout:
      return 5;
    case ErrorCode::kDiverged:
    case ErrorCode::kInternal:
      return 1;
  }
  return 1;
}

Error::Error(ErrorCode code, std::string message)
    : code_(code), message_(std::move(message)), what_(message_) {}

Error& Error::add_context(std::string context) {
  what_ += format(" ({})", context);
  context_.push_back(std::move(context));
  return *this;
}

void fail_check(const char* file, int line, const char* condition, std::string detail) {
  throw Error(ErrorCode::kInternal,
              format("{}:{}: check failed: {}: {}", file, line, condition, detail));
}

Error to_error(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error;
  } catch (const std::filesystem::filesystem_error& error) {
    return {ErrorCode::kDeviceError,
            format("cannot access {}: {}", error.path1().string(), error.code().message())};
  } catch (const std::system_error& error) {
    // Of the C++ library, which names no file: a thread that cannot be started, as a rule.
    return {ErrorCode::kDeviceError, format("the system gives no more: {}", error.what())};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory, "the system has no memory left"};
  } catch (const std::exception& error) {
    return {ErrorCode::kInternal, format("unexpected: {}", error.what())};
  }
}

}  // namespace tessera
