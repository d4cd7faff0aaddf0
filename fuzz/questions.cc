// Lines of multiple choice: whatever the bytes, the file becomes questions that are what their
// header says, or an error that names it.

#include "tessera/data/questions.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>

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
      if (question.endings.size() < 2 || question.label.value_or(0) < 0 ||
          question.label.value_or(0) >= std::ssize(question.endings)) {
        std::abort();
      }
    }
  } catch (const tessera::Error& error) {
    if (error.message().find(path.string()) == std::string::npos) {
      std::abort();
    }
  }
  return 0;
}
