#pragma once

#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {

// For tests: the text of the Error that `body` throws, which must have this code.
template <class Body>
std::string error_of(ErrorCode code, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return "";
}

// A message without " at byte 12", of which it must have at least one.
inline std::string without_bytes(const std::string& message) {
  const std::string result = std::regex_replace(message, std::regex(" at byte [0-9]+"), "");
  EXPECT_NE(result, message);
  return result;
}

}  // namespace tessera
