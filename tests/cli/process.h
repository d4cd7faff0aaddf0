#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "tessera/base/file.h"

namespace tessera {

// The path of a program of the build, or of that one that TESSERA_PROGRAMS names, in whose folder
// it has this name.
std::string built_program(const std::string& name);

// How a program ended.
struct Outcome {
  int code = -1;    // exit code, or 128 + the signal that ended it
  std::string out;  // all of stdout
  std::string err;  // all of stderr
};

// The last line of what a program printed, without its end.
std::string last_line(const std::string& text);

// A program that runs beside the test. The pipe of its stderr holds one page, so that a program
// that prints a line a step stays within some dozens of steps of what wait_for() has read, however
// slow the test's own process is.
class Process {
 public:
  // Starts argv[0] (a path) in `directory`. Errors: kDeviceError.
  Process(const std::vector<std::string>& argv, const std::filesystem::path& directory);
  // Kills what still runs.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int id() const { return id_; }

  // Reads stderr until it has `text`; false where it ends before.
  bool wait_for(std::string_view text);

  void send(int signal) const;

  // Reads the rest of its output and waits for its end.
  Outcome finish();

 private:
  pid_t id_ = -1;
  FileDescriptor out_pipe_;
  FileDescriptor err_pipe_;
  Outcome outcome_;
};

}  // namespace tessera
