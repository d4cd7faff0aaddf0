// The sets of integers that the verifier keeps, beside plain ones.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tessera/program/index_set.h"
#include "tessera/program/stretches.h"

namespace tessera {
namespace {

using Indices = std::set<std::size_t>;

std::optional<std::size_t> before(const Indices& indices, std::size_t index) {
  const auto next = indices.lower_bound(index);
  return next == indices.begin() ? std::nullopt : std::optional(*std::prev(next));
}

std::optional<std::size_t> after(const Indices& indices, std::size_t index) {
  const auto next = indices.upper_bound(index);
  return next == indices.end() ? std::nullopt : std::optional(*next);
}

TEST(IndexSet, KnowsNeighbours) {
  std::mt19937 random(5);
  for (const std::size_t bound : {1, 2, 63, 64, 65, 4096, 4097, 300000}) {
    IndexSet found(bound);
    Indices expected;
    for (int i = 0; i < 3000; ++i) {
      // Near each other, so that some are met again.
      const std::size_t index = (random() % 40 * 7919 + random() % 3) % bound;
      if (random() % 2 == 0) {
        found.insert(index);
        expected.insert(index);
      } else {
        found.erase(index);
        expected.erase(index);
      }
      const std::size_t at = random() % 2 == 0 ? index : random() % bound;
      ASSERT_EQ(found.before(at), before(expected, at)) << at << " of " << bound;
      ASSERT_EQ(found.after(at), after(expected, at)) << at << " of " << bound;
    }
  }
}

TEST(Stretches, HoldWhatWasAdded) {
  std::mt19937 random(9);
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(below));
  };
  Stretches found;
  std::set<std::int64_t> expected;
  for (int i = 0; i < 5000; ++i) {
    if (draw(8) == 0) {
      found.clear();
      expected.clear();
    }
    const std::int64_t first = draw(50);
    const std::int64_t last = first + draw(10);
    found.add(first, last + 1);
    for (std::int64_t each = first; each <= last; ++each) {
      expected.insert(each);
    }
    const std::int64_t begin = draw(60);
    const std::int64_t end = begin + 1 + draw(12);
    const auto in = std::distance(expected.lower_bound(begin), expected.lower_bound(end));
    EXPECT_EQ(found.contains(begin, end), in == end - begin);
    Stretches::Gaps gaps(found);
    std::int64_t from = 0;
    for (const std::int64_t size : {std::int64_t{1}, 1 + draw(4), 5 + draw(4)}) {
      const auto is_free = [&](std::int64_t at) {
        return expected.lower_bound(at) == expected.lower_bound(at + size);
      };
      std::int64_t lowest = from + draw(3);
      from = gaps.lowest(lowest, size);
      while (!is_free(lowest)) {
        ++lowest;
      }
      EXPECT_EQ(from, lowest);
    }
  }
}

}  // namespace
}  // namespace tessera
