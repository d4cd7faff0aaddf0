#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_error.h"

// For tests: files of tests/golden/tokenizer/, and how an error reads.
namespace tessera {

// Written by the scripts tests/golden/make_*_goldens.py.
std::filesystem::path golden_path(const std::string& name);

inline nlohmann::json golden(const std::string& name) {
  return nlohmann::json::parse(read_file(golden_path(name)));
}

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

template <class Body>
void expect_error(const Body& body, ErrorCode code, const std::string& message) {
  const std::string what = error_of(code, body);
  EXPECT_THAT(what.starts_with(message.substr(0, message.find(' ')) + " at byte")
                  ? without_bytes(what)
                  : what,
              testing::HasSubstr(message));
}

}  // namespace tessera
