#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {

// A program that runs beside a benchmark, as the scripts of bench/peers/ do: it says a JSON object
// when it is ready, and answers each line of stdin, a JSON object, with another one; {"quit": true}
// ends it.
class PeerProcess {
 public:
  // Starts arguments[0], a path, with the other arguments. `name` is what errors call it.
  // Errors: kDeviceError where it ends before it is ready.
  PeerProcess(std::string name, std::vector<std::string> arguments) : name_(std::move(name)) {
    start(arguments);
    answer();
  }

  // Starts TESSERA_PYTHON, else /usr/bin/python3, with the script, a path, and --KEY=SIZE for each
  // size, and --dtype.
  // Errors: kDeviceError where it ends before it is ready.
  PeerProcess(const char* script,
              const std::vector<std::pair<const char*, std::int64_t>>& sizes,
              std::string_view dtype)
      : PeerProcess("PyTorch (is it installed, and does it work here?)",
                    arguments_of(script, sizes, dtype)) {}

  ~PeerProcess() {
    std::fputs("{\"quit\": true}\n", to_);
    std::fclose(to_);
    std::fclose(from_);
    ::waitpid(process_, nullptr, 0);
  }

  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Errors: kDeviceError where it ends instead of answering.
  nlohmann::json ask(const nlohmann::json& question) {
    std::fputs((question.dump() + "\n").c_str(), to_);
    std::fflush(to_);
    return answer();
  }

 private:
  static std::vector<std::string> arguments_of(
      const char* script,
      const std::vector<std::pair<const char*, std::int64_t>>& sizes,
      std::string_view dtype) {
    const char* const python = std::getenv("TESSERA_PYTHON");
    std::vector<std::string> arguments = {python == nullptr ? "/usr/bin/python3" : python, script};
    for (const auto& [key, size] : sizes) {
      arguments.push_back(format("--{}={}", key, size));
    }
    arguments.push_back(format("--dtype={}", dtype));
    return arguments;
  }

  void start(std::vector<std::string>& arguments) {
    int in[2];
    int out[2];
    TESSERA_REQUIRE(::pipe(in) == 0 && ::pipe(out) == 0, ErrorCode::kDeviceError, "no pipes");
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      for (const int descriptor : {in[0], in[1], out[0], out[1]}) {
        ::close(descriptor);
      }
      std::vector<char*> pointers;
      for (std::string& argument : arguments) {
        pointers.push_back(argument.data());
      }
      pointers.push_back(nullptr);
      ::execv(pointers[0], pointers.data());
      std::_Exit(127);
    }
    std::signal(SIGPIPE, SIG_IGN);  // where it ended, answer() says so
    ::close(in[0]);
    ::close(out[1]);
    to_ = ::fdopen(in[1], "w");
    from_ = ::fdopen(out[0], "r");
  }

  nlohmann::json answer() {
    char line[65536];
    TESSERA_REQUIRE(std::fgets(line, sizeof line, from_) != nullptr,
                    ErrorCode::kDeviceError,
                    "{} ended before it answered",
                    name_);
    return nlohmann::json::parse(line);
  }

  std::string name_;
  pid_t process_ = 0;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

}  // namespace tessera
