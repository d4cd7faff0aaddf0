#include "tessera/models/hugging_face_config_text.h"

#include "tessera/base/format.h"

namespace tessera {

std::string python_float(double value) {
  const std::string text = format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string python_floats(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    text += format("{}{}", text.empty() ? "" : ", ", python_float(value));
  }
  return format("[{}]", text);
}

std::string json_list(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) {
    text += format("{}{}", text.empty() ? "" : ", ", number);
  }
  return format("[{}]", text);
}

void HuggingFaceConfigText::add(std::string_view key, std::string_view json) {
  values_.emplace(key, json);
}

std::string HuggingFaceConfigText::finish() const {
  std::string text;
  for (const auto& [key, json] : values_) {
    text += format("{}\n  \"{}\": {}", text.empty() ? "{" : ",", key, json);
  }
  return text + "\n}\n";
}

void HuggingFaceConfigText::text(std::string_view key, std::string_view value) {
  add(key, format("\"{}\"", value));
}

void HuggingFaceConfigText::number(std::string_view key, std::int64_t value) {
  add(key, format("{}", value));
}

void HuggingFaceConfigText::real(std::string_view key, double value) {
  add(key, python_float(value));
}

void HuggingFaceConfigText::flag(std::string_view key, bool value) {
  add(key, value ? "true" : "false");
}

void HuggingFaceConfigText::tokens(std::string_view key, const std::vector<std::int32_t>& ids) {
  add(key,
      ids.size() > 1 ? json_list({ids.begin(), ids.end()})
      : ids.empty()  ? "null"
                     : format("{}", ids.front()));
}

void HuggingFaceConfigText::dtype(DType dtype) {
  text("torch_dtype",
       dtype == DType::kBF16  ? "bfloat16"
       : dtype == DType::kF16 ? "float16"
                              : "float32");
}

}  // namespace tessera
