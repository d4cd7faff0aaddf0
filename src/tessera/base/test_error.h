#pragma once

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

}  // namespace tessera
