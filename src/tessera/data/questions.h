#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// A context and the endings that may follow it, in the form of HellaSwag.
struct Question {
  std::int64_t line = 0;  // of the file, from 1
  std::string context;
  std::vector<std::string> endings;
  std::optional<std::int64_t> label;  // the number of the right ending, from 0
};

// Lines of JSON objects with "ctx" (or "context"), a string; "endings", a list of two strings or
// more; and perhaps "label", an integer or its digits as a string. Other keys are not looked at,
// and blank lines are passed over. Errors: kInvalidData naming FILE:LINE, found and expected.
std::vector<Question> read_questions(const std::filesystem::path& file);

}  // namespace tessera
