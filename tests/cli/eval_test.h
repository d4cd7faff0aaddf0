#pragma once

// For tests of `tessera eval`.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {

inline std::string eval_golden(const std::string& file) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/eval" / file;
}

class EvalTest : public TrainingTest {
 protected:
  nlohmann::json golden_ = nlohmann::json::parse(read_file(eval_golden("golden.json")));

  // The golden model, as a checkpoint.
  void import_model() const {
    const Outcome outcome = tessera({"checkpoint", "import", eval_golden(""), "-o", "model"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }

  nlohmann::json eval(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "eval");
    arguments.emplace_back("--json");
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out, nullptr, false);
  }

  std::string error_of(std::vector<std::string> arguments, int code) const {
    arguments.insert(arguments.begin(), "eval");
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    return outcome.err;
  }

  std::vector<nlohmann::json> lines_of(const std::string& file) const {
    std::vector<nlohmann::json> lines;
    std::string text = read_file(path(file));
    for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      lines.push_back(nlohmann::json::parse(text.substr(0, end)));
      text.erase(0, end + 1);
    }
    return lines;
  }
};

}  // namespace tessera
