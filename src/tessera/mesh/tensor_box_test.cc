#include "tessera/mesh/tensor_box.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Stretch = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // whole, local, count

std::vector<Stretch> stretches(const TensorBox& box, std::int64_t first, std::int64_t count) {
  std::vector<Stretch> found;
  box.for_each_stretch(first, count, [&](std::int64_t whole, std::int64_t local, std::int64_t n) {
    found.emplace_back(whole, local, n);
  });
  return found;
}

// Of each element of the box, its place in the whole; -1: padding. By coordinates, one by one.
std::vector<std::int64_t> places(const TensorBox& box) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < box.num_elements(); ++i) {
    std::int64_t rest = i;
    std::int64_t place = 0;
    std::int64_t stride = 1;
    bool padding = false;
    for (std::size_t d = box.whole().size(); d-- > 0;) {
      const std::int64_t at = box.offset()[d] + rest % box.extent()[d];
      padding = padding || at >= box.whole()[d];
      place += at * stride;
      stride *= box.whole()[d];
      rest /= box.extent()[d];
    }
    result.push_back(padding ? -1 : place);
  }
  return result;
}

TEST(TensorBox, StretchesAreAsLongAsTheyCanBe) {
  EXPECT_THAT(stretches({{4, 6}, {0, 0}, {4, 6}}, 0, 24), ElementsAre(Stretch{0, 0, 24}));
  EXPECT_THAT(stretches({{4, 6}, {2, 0}, {2, 6}}, 1, 10), ElementsAre(Stretch{13, 1, 10}));
  EXPECT_THAT(stretches({{4, 6}, {0, 2}, {4, 2}}, 1, 5),
              ElementsAre(Stretch{3, 1, 1}, Stretch{8, 2, 2}, Stretch{14, 4, 2}));
  EXPECT_THAT(stretches({{}, {}, {}}, 0, 1), ElementsAre(Stretch{0, 0, 1}));
}

TEST(TensorBox, LeavesPaddingOut) {
  // The second half of 5 rows, cut in two.
  const TensorBox rows({5, 2}, {3, 0}, {3, 2});
  EXPECT_EQ(rows.num_elements(), 6);
  EXPECT_EQ(rows.num_valid_elements(), 4);
  EXPECT_THAT(stretches(rows, 0, 6), ElementsAre(Stretch{6, 0, 4}));
  EXPECT_THAT(stretches(rows, 4, 2), IsEmpty());
  // Of 3 columns the last, and one that is not there.
  EXPECT_THAT(stretches({{2, 3}, {0, 2}, {2, 2}}, 0, 4),
              ElementsAre(Stretch{2, 0, 1}, Stretch{5, 2, 1}));
}

TEST(TensorBox, EveryElementHasItsPlace) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::uint64_t drawn = 0;
    const auto draw = [&](std::int64_t below) {
      return static_cast<std::int64_t>(uniform(seed, drawn++) * static_cast<double>(below));
    };
    std::vector<std::int64_t> whole;
    std::vector<std::int64_t> offset;
    std::vector<std::int64_t> extent;
    std::int64_t elements = 1;
    for (std::int64_t d = draw(4); d > 0; --d) {
      whole.push_back(1 + draw(5));
      offset.push_back(draw(whole.back()));
      extent.push_back(1 + draw(5));
      elements *= whole.back();
    }
    const TensorBox box(whole, offset, extent);
    const std::vector<std::int64_t> expected = places(box);
    EXPECT_EQ(box.num_valid_elements(), std::ssize(expected) - std::ranges::count(expected, -1));
    const std::int64_t first = draw(box.num_elements());
    const std::int64_t count = draw(box.num_elements() - first + 1);
    std::vector<std::int64_t> found(expected.size(), -1);
    for (const auto& [place, local, n] : stretches(box, first, count)) {
      for (std::int64_t i = 0; i < n; ++i) {
        found[static_cast<std::size_t>(local + i)] = place + i;
      }
    }
    for (std::int64_t i = 0; i < box.num_elements(); ++i) {
      const bool wanted = i >= first && i < first + count;
      EXPECT_EQ(found[static_cast<std::size_t>(i)],
                wanted ? expected[static_cast<std::size_t>(i)] : -1)
          << "seed " << seed;
    }
    // Elements before the bound lie before the place, others at it or behind, or are padding.
    for (std::int64_t place = 0; place <= elements; ++place) {
      const std::int64_t bound = box.lower_bound(place);
      for (std::int64_t i = 0; i < box.num_elements(); ++i) {
        const std::int64_t at = expected[static_cast<std::size_t>(i)];
        EXPECT_TRUE(at == -1 || (i < bound) == (at < place)) << "seed " << seed;
      }
    }
  }
}

TEST(TensorBox, RefusesWhatIsNoBox) {
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { TensorBox({2, 2}, {0}, {1, 1}); }),
            "a box with 1 offsets and 2 extents of a tensor of 2 dims: expected as many of each");
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { TensorBox({2}, {-1}, {1}); }),
            "a box with a negative size or offset");
}

}  // namespace
}  // namespace tessera
