#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/format.h"

namespace tessera {

// Who must act on an error. Each code maps to one process exit code (exit_code()).
enum class ErrorCode {
  kInvalidArgument,  // the caller of a library function
  kInvalidConfig,    // the author of the run file or command line
  kInvalidData,      // the owner of an input file or checkpoint
  kOutOfMemory,      // the plan or the machine is too small
  kUnsupported,      // nobody yet: the combination does not exist in this build
  kDeviceError,      // the machine: a device or a system call failed
  kPeerFailure,      // another rank failed
  kTimeout,          // another rank did not answer in time
  kDiverged,         // the author of the run: training produced numbers that are not finite
  kInternal,         // the authors of Tessera
};

std::string_view to_string(ErrorCode code);

// The process exit code for `code`: 2 usage or config, 3 bad input data or checkpoint, 4 does not
// fit, 5 a peer or device failed, 1 anything else.
int exit_code(ErrorCode code);

// The only exception type that Tessera throws on purpose. `context` grows while the stack unwinds,
// innermost first ("while reading tokenizer.json", "rank 3, instruction 118").
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  ErrorCode code() const { return code_; }

  const std::string& message() const { return message_; }

  const std::vector<std::string>& context() const { return context_; }

  // Message and context on one line.
  const char* what() const noexcept override { return what_.c_str(); }

  Error& add_context(std::string context);

 private:
  ErrorCode code_;
  std::string message_;
  std::vector<std::string> context_;
  std::string what_;
};

// Any exception as the Error that is reported: one of std::filesystem names the path and the
// system's reason (kDeviceError), one of memory is kOutOfMemory, what nobody expected kInternal.
Error to_error(const std::exception_ptr& exception);

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> message, Args&&... args) {
  throw Error(code, format(message, std::forward<Args>(args)...));
}

[[noreturn]] void fail_check(const char* file, int line, const char* condition, std::string detail);

// Runs `body`; an Error that leaves it gains `context()` (called only then).
template <class Context, class Body>
decltype(auto) with_context(Context&& context, Body&& body) {
  try {
    return body();
  } catch (Error& error) {
    error.add_context(context());
    throw;
  }
}

}  // namespace tessera

// A condition that the caller must meet: throws `code` with a formatted message.
#define TESSERA_REQUIRE(condition, code, ...) \
  do {                                        \
    if (!(condition)) [[unlikely]] {          \
      ::tessera::fail(code, __VA_ARGS__);     \
    }                                         \
  } while (false)

// An invariant of our own: throws kInternal with place, condition and a formatted detail.
#define TESSERA_CHECK(condition, ...)                                                        \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      ::tessera::fail_check(__FILE__, __LINE__, #condition, ::tessera::format(__VA_ARGS__)); \
    }                                                                                        \
  } while (false)
