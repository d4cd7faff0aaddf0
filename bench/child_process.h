#pragma once

#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tessera/base/error.h"

namespace tessera {

// The JSON object on the last line that the command, a shell's, prints. Errors: kDeviceError where
// it cannot be run, fails, is not done after `seconds`, or ends with another line.
inline nlohmann::json output_of(const std::string& command, int seconds) {
  constexpr int kTimedOut = 124;  // of coreutils' timeout
  TESSERA_REQUIRE(seconds > 0, ErrorCode::kDeviceError, "no time is left for {}", command);
  std::FILE* const pipe =
      ::popen(format("timeout --kill-after=5 {} {}", seconds, command).c_str(), "r");
  TESSERA_REQUIRE(pipe != nullptr, ErrorCode::kDeviceError, "cannot run {}", command);
  std::string last;
  char line[65536];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    last = line;
  }
  const int status = ::pclose(pipe);
  TESSERA_REQUIRE(!WIFEXITED(status) || WEXITSTATUS(status) != kTimedOut,
                  ErrorCode::kDeviceError,
                  "{} was not done after {} s",
                  command,
                  seconds);
  TESSERA_REQUIRE(status == 0, ErrorCode::kDeviceError, "{} failed", command);
  const nlohmann::json output = nlohmann::json::parse(last, nullptr, false);
  TESSERA_REQUIRE(output.is_object(),
                  ErrorCode::kDeviceError,
                  "{} printed '{}', expected a JSON object",
                  command,
                  last);
  return output;
}

}  // namespace tessera
