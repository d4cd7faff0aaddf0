#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/passes/compile.h"

namespace tessera {

// Writes the text of every form where it was asked for, and a line for every pass.
class PassDump {
 public:
  // A directory that is made where it is not there; empty: nothing is written.
  explicit PassDump(std::filesystem::path directory);

  // What the pass `name` has made, in so many seconds. Errors: those of write_file_atomic().
  void add(std::string_view name, const Representation& form, double seconds);

 private:
  std::filesystem::path directory_;
  int number_ = 0;
  std::string before_;
  std::string lines_;
};

}  // namespace tessera
