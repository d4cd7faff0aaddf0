#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/dtype.h"

namespace tessera {

// The keys of a config.json, which stand in alphabetical order, as transformers write them.
class HuggingFaceConfigText {
 public:
  void add(std::string_view key, std::string_view json);
  void text(std::string_view key, std::string_view value);
  void number(std::string_view key, std::int64_t value);
  void real(std::string_view key, double value);  // with a point, as Python writes floats
  void flag(std::string_view key, bool value);
  void tokens(std::string_view key, const std::vector<std::int32_t>& ids);  // null, one, or a list
  void dtype(DType dtype);                                                  // "torch_dtype"

  std::string finish() const;

 private:
  std::map<std::string, std::string> values_;  // JSON
};

// "1.0", "1e-05"; and a list of these.
std::string python_float(double value);
std::string python_floats(const std::vector<double>& values);

// "[1, 2]".
std::string json_list(const std::vector<std::int64_t>& numbers);

}  // namespace tessera
