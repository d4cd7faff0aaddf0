// Lines of multiple choice: whatever the bytes, the file becomes questions that are what their
// header says, or an error that names the line.

#include "tessera/data/questions.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "fuzz/check.h"
#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const tessera::TestDirectory kDirectory;
  const std::filesystem::path path = kDirectory.path() / "questions.jsonl";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    for (const tessera::Question& question : tessera::read_questions(path)) {
      tessera::require(question.endings.size() >= 2 && question.label.value_or(0) >= 0 &&
                       question.label.value_or(0) < std::ssize(question.endings));
    }
  } catch (const tessera::Error& error) {
    // A line, or what the file is: empty, compressed and cut off, another program's.
    tessera::require(tessera::has_number_behind(error.message(), path.string() + ":") ||
                     error.message().starts_with(path.string() + " is ") ||
                     error.message().starts_with(path.string() + ": "));
  }
  return 0;
}
