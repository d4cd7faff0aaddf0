#pragma once

#include <cstddef>
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
  EXPECT_FALSE(expected.states.empty()) << what;
  ASSERT_EQ(found.states.size(), expected.states.size()) << what;
  for (const auto& [key, bytes] : expected.states) {
    const auto state = found.states.find(key);
    ASSERT_TRUE(state != found.states.end() && state->second == bytes)
        << what << ": " << quote(key.first, key.second);
  }
}

// D4: losses within 1e-6 relative at step 1, 1e-4 later; norms, which drift sooner, loosely later.
inline void expect_close(const RankResult& a, const RankResult& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], (i == 0 ? 1e-6F : 1e-4F) * b.losses[i])
        << what << ": step " << i + 1;
    EXPECT_NEAR(a.grad_norms[i], b.grad_norms[i], (i == 0 ? 1e-5F : 1e-2F) * b.grad_norms[i])
        << what << ": step " << i + 1;
  }
}

}  // namespace tessera
