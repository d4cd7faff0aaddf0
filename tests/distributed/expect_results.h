#pragma once

#include <string>

#include <gtest/gtest.h>

#include "tests/distributed/run_ranks.h"

namespace tessera {

// Bit by bit. `what` says in messages which of a test's runs was found.
inline void expect_equal(const RankResult& found,
                         const RankResult& expected,
                         const std::string& what = "") {
  EXPECT_EQ(found.losses, expected.losses) << what;
  EXPECT_EQ(found.grad_norms, expected.grad_norms) << what;
  ASSERT_EQ(found.weights.size(), expected.weights.size()) << what;
  for (const auto& [name, weights] : expected.weights) {
    EXPECT_TRUE(weights == found.weights.at(name)) << what << ": " << name;
  }
}

}  // namespace tessera
