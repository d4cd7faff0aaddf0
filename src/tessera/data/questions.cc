#include "tessera/data/questions.h"

#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/data/json_line.h"
#include "tessera/data/jsonl.h"
#include "tessera/data/text_stream.h"

namespace tessera {
namespace {

using nlohmann::json;

// HellaSwag's own files have numbers, some copies of them digits; nothing where it is neither.
std::optional<std::int64_t> parse_label(const json& label) {
  if (label.is_number_integer()) {
    return label.get<std::int64_t>();
  }
  std::int64_t number = 0;
  if (!label.is_string()) {
    return std::nullopt;
  }
  const auto& text = label.get_ref<const std::string&>();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                  : std::nullopt;
}

// What is wrong with `endings`; nothing where they are what they should be.
std::string endings_problem(const json& object) {
  const auto endings = object.find("endings");
  if (endings == object.end()) {
    return "found no \"endings\", expected a list of two strings or more";
  }
  if (!endings->is_array()) {
    return format("endings: found {}, expected a list of two strings or more", kind_of(*endings));
  }
  if (endings->size() < 2) {
    return format("endings: found {} ending{}, expected at least 2",
                  endings->size(),
                  endings->size() == 1 ? "" : "s");
  }
  for (std::size_t i = 0; i < endings->size(); ++i) {
    if (!(*endings)[i].is_string() || (*endings)[i].get_ref<const std::string&>().empty()) {
      return format("endings[{}]: found {}, expected a string that is not empty",
                    i,
                    (*endings)[i].is_string() ? "an empty one" : kind_of((*endings)[i]));
    }
  }
  return "";
}

// Fills `question`; what is wrong with the line.
std::string parse_question(std::string_view line, Question& question) {
  json object;
  if (std::string problem = parse_json_line(line, object); !problem.empty()) {
    return problem;
  }
  if (!object.is_object() || is_odd_number(object)) {
    return format("found {}, expected an object with a context and endings", kind_of(object));
  }
  const auto context = object.contains("ctx") ? object.find("ctx") : object.find("context");
  if (object.contains("context") && *context != object["context"]) {
    return "found \"ctx\" and \"context\", which differ: expected one of the two";
  }
  if (context == object.end() || !context->is_string()) {
    return "found no string as \"ctx\", expected it (or \"context\")";
  }
  question.context = context->get<std::string>();
  if (std::string problem = endings_problem(object); !problem.empty()) {
    return problem;
  }
  question.endings = object.at("endings").get<std::vector<std::string>>();
  const auto label = object.find("label");
  const bool is_left_empty =
      label != object.end() && label->is_string() && label->get_ref<const std::string&>().empty();
  if (label == object.end() || label->is_null() || is_left_empty) {
    return "";  // a test set keeps its labels to itself
  }
  question.label = parse_label(*label);
  const auto count = static_cast<std::int64_t>(question.endings.size());
  return question.label && *question.label >= 0 && *question.label < count
             ? ""
             : format("label: found {}, expected the number of an ending, from 0 to {}",
                      as_written(*label),
                      count - 1);
}

}  // namespace

std::vector<Question> read_questions(const std::filesystem::path& file) {
  const WholeText whole = read_whole_text(file, {.holds_json = true});
  std::string_view rest = whole.text;
  std::vector<Question> questions;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = take_line(rest);
    if (is_blank(line)) {
      continue;
    }
    Question question{.line = number, .context = {}, .endings = {}, .label = {}};
    const std::string problem = parse_question(line, question);
    TESSERA_REQUIRE(problem.empty(),
                    ErrorCode::kInvalidData,
                    "{}{}{}: {}",
                    file.string(),
                    whole.joins_lines ? ": value " : ":",
                    number,
                    whole.joins_lines ? as_of_value(problem) : problem);
    questions.push_back(std::move(question));
  }
  TESSERA_REQUIRE(!questions.empty(),
                  ErrorCode::kInvalidData,
                  "{} is empty, expected a line for each question",
                  file.string());
  return questions;
}

}  // namespace tessera
