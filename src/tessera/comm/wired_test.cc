#include "tessera/comm/wired.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/half.h"
#include "tessera/comm/counted_communicator.h"
#include "tessera/comm/test_levels.h"
#include "tessera/mesh/placement.h"

namespace tessera {
namespace {

constexpr WireFormat kF32 = WireFormat::kF32;
constexpr WireFormat kBF16 = WireFormat::kBF16;
constexpr WireFormat kInt8 = WireFormat::kInt8;
constexpr WireFormat kInt4 = WireFormat::kInt4;

// Smaller than the ranks and than a block, around blocks and slices, larger.
constexpr std::int64_t kCounts[] = {1, 5, 17, 255, 256, 1000, 3072, 2773, 20011};

struct Case {
  Sizes sizes;
  Wire wire;
};

class WiredTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Wires,
                         WiredTest,
                         testing::Values(Case{{}, {}},
                                         Case{{2}, {{kInt8}}},
                                         Case{{3}, {{kInt4}}},
                                         Case{{2, 3}, {{kBF16, kBF16}}},
                                         Case{{2, 2}, {{kInt8, kInt8}, 64}},
                                         Case{{2, 3}, {{kInt4, kInt4}}},
                                         Case{{2, 2, 3}, {{kInt8, kInt8, kInt8}}},
                                         Case{{2, 2, 3}, {{kF32, kF32, kInt4}}},
                                         Case{{2, 2, 3}, {{kF32, kInt8, kInt4}, 32}},
                                         Case{{2, 3, 2}, {{kInt4, kF32, kF32}}},
                                         Case{{2, 3, 2}, {{kInt8, kF32, kBF16}}},
                                         Case{{2, 2}, {}}),
                         [](const auto& instance) {
                           return "Case" + std::to_string(instance.index);
                         });

std::uint64_t fresh_seed() {
  static const std::uint64_t kSeed = std::random_device{}();
  return kSeed;
}

std::vector<float> values_of(std::int64_t rank, std::int64_t count) {
  std::mt19937_64 random(fresh_seed() + static_cast<std::uint64_t>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  std::ranges::generate(values, [&] { return normal(random); });
  return values;
}

// How far a value of this block may move when it is encoded: half a step, and what f32 rounds off.
double hop_error(const Encoding& encoding, double value, double largest) {
  constexpr double kRounding = 127 * 3e-7;
  switch (encoding.format) {
    case WireFormat::kF32:
      return 0;
    case WireFormat::kBF16:
      return std::abs(value) / 256;
    case WireFormat::kInt8:
      return largest / 127 * (0.5 + kRounding);
    case WireFormat::kInt4:
      return largest / 7 * (0.5 + kRounding);
  }
  return 0;
}

// Numbers with what they may be off by.
struct Approximate {
  std::vector<double> values;
  std::vector<double> errors;

  explicit Approximate(std::size_t count) : values(count), errors(count) {}
};

// What encoding may do to them.
void add_hop(Approximate& numbers, const Encoding& encoding) {
  const auto block = static_cast<std::size_t>(encoding.block);
  for (std::size_t first = 0; first < numbers.values.size(); first += block) {
    const std::size_t end = std::min(first + block, numbers.values.size());
    double largest = 0;
    for (std::size_t i = first; i < end; ++i) {
      largest = std::max(largest, std::abs(numbers.values[i]) + numbers.errors[i]);
    }
    for (std::size_t i = first; i < end; ++i) {
      numbers.errors[i] +=
          hop_error(encoding, std::abs(numbers.values[i]) + numbers.errors[i], largest);
    }
  }
}

// The sum over the ranks of the first `level` levels that follow `first_rank`.
Approximate sum_of(const Case& c, std::size_t level, std::int64_t first_rank, std::int64_t count) {
  Approximate sum(static_cast<std::size_t>(count));
  if (level == 0) {
    std::ranges::copy(values_of(first_rank, count), sum.values.begin());
    return sum;
  }
  const std::int64_t inner =
      product(Sizes(c.sizes.begin(), c.sizes.begin() + static_cast<std::ptrdiff_t>(level) - 1));
  for (std::int64_t i = 0; i < c.sizes[level - 1]; ++i) {
    Approximate part = sum_of(c, level - 1, first_rank + i * inner, count);
    if (!c.wire.formats.empty()) {
      add_hop(part, {.format = c.wire.formats[level - 1], .block = c.wire.block});
    }
    for (std::size_t e = 0; e < sum.values.size(); ++e) {
      sum.values[e] += part.values[e];
      sum.errors[e] += part.errors[e] + 1e-7 * std::abs(sum.values[e]);
    }
  }
  return sum;
}

// What gathering the numbers may do to them: each change of format encodes them once.
void add_gather(Approximate& numbers, const Wire& wire) {
  WireFormat format = kF32;
  for (std::size_t i = wire.formats.size(); i-- > 0;) {
    if (wire.formats[i] != format) {
      format = wire.formats[i];
      add_hop(numbers, {.format = format, .block = wire.block});
    }
  }
}

void expect_within(const std::vector<float>& found,
                   const Approximate& expected,
                   std::int64_t begin) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(begin) + i;
    const bool inside = at < expected.values.size();
    const double value = inside ? expected.values[at] : 0.0;
    const double error = inside ? expected.errors[at] : 0.0;
    ASSERT_NEAR(found[i], value, error) << "element " << at << ", seed " << fresh_seed();
  }
}

// A workspace of exactly so many bytes.
class Workspace {
 public:
  explicit Workspace(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes) + kGuard, std::byte{0xFF}) {}

  ~Workspace() {
    EXPECT_TRUE(std::all_of(bytes_.end() - kGuard, bytes_.end(), [](std::byte byte) {
      return byte == std::byte{0xFF};
    })) << "wrote past the workspace";
  }

  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::byte* data() { return bytes_.data(); }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  std::vector<std::byte> bytes_;
};

std::int64_t slice_of(const Sizes& sizes, std::int64_t count) {
  return padded_elements(count, product(sizes)) / product(sizes);
}

TEST_P(WiredTest, ReducesWithinHalfAStepPerHop) {
  const Case& c = GetParam();
  for (const std::int64_t count : kCounts) {
    const std::int64_t slice = slice_of(c.sizes, count);
    const Approximate expected = sum_of(c, c.sizes.size(), 0, count);
    on_levels(c.sizes, [&](std::int64_t rank, Levels levels) {
      auto in = values_of(rank, count);
      std::vector<float> own(static_cast<std::size_t>(slice), -1.0F);
      Workspace room(reduce_workspace_bytes(c.sizes, c.wire, DType::kF32, slice));
      reduce_slices(levels, c.wire, elements(in), elements(own), room.data(), host_mover());
      EXPECT_EQ(in, values_of(rank, count));
      expect_within(own, expected, slice_index(c.sizes, rank) * slice);
    });
  }
}

TEST_P(WiredTest, GathersTheSameBitsEverywhere) {
  const Case& c = GetParam();
  for (const std::int64_t count : kCounts) {
    const std::int64_t slice = slice_of(c.sizes, count);
    Approximate expected = sum_of(c, 0, 0, count);
    add_gather(expected, c.wire);
    std::mutex mutex;
    std::vector<float> first;
    on_levels(c.sizes, [&](std::int64_t rank, Levels levels) {
      auto padded = values_of(0, count);
      padded.resize(static_cast<std::size_t>(slice * product(c.sizes)), 0.0F);
      const auto begin = padded.begin() + slice_index(c.sizes, rank) * slice;
      std::vector<float> own(begin, begin + slice);
      std::vector<float> all(static_cast<std::size_t>(count), -1.0F);
      Workspace room(gather_workspace_bytes(c.sizes, c.wire, DType::kF32, slice));
      gather_slices(levels, c.wire, elements(own), elements(all), room.data(), host_mover());
      expect_within(all, expected, 0);
      const std::scoped_lock lock(mutex);
      first = first.empty() ? all : first;
      EXPECT_EQ(all, first);
    });
  }
}

TEST_P(WiredTest, AllReducesInPlaceToTheSameBits) {
  const Case& c = GetParam();
  for (const std::int64_t count : kCounts) {
    Approximate expected = sum_of(c, c.sizes.size(), 0, count);
    add_gather(expected, c.wire);
    std::mutex mutex;
    std::vector<float> first;
    on_levels(c.sizes, [&](std::int64_t rank, Levels levels) {
      auto all = values_of(rank, count);
      Workspace room(all_reduce_workspace_bytes(c.sizes, c.wire, DType::kF32, count));
      all_reduce_slices(levels, c.wire, elements(all), elements(all), room.data(), host_mover());
      expect_within(all, expected, 0);
      const std::scoped_lock lock(mutex);
      first = first.empty() ? all : first;
      EXPECT_EQ(all, first);
    });
  }
}

// A sum, never a mean, at every size: equal contributions of one sign are codes of the largest.
TEST_P(WiredTest, SumsAreNotDivided) {
  const Case& c = GetParam();
  for (const std::int64_t count : kCounts) {
    on_levels(c.sizes, [&](std::int64_t /*rank*/, Levels levels) {
      std::vector<float> all(static_cast<std::size_t>(count), 1.5F);
      Workspace room(all_reduce_workspace_bytes(c.sizes, c.wire, DType::kF32, count));
      all_reduce_slices(levels, c.wire, elements(all), elements(all), room.data(), host_mover());
      const double expected = 1.5 * static_cast<double>(product(c.sizes));
      for (const float value : all) {
        ASSERT_NEAR(value, expected, expected * 2e-6);
      }
    });
  }
}

TEST_P(WiredTest, OneRanksNaNReachesEverybody) {
  const Case& c = GetParam();
  on_levels(c.sizes, [&](std::int64_t rank, Levels levels) {
    std::vector<float> all(3000, 1.0F);
    if (rank == 0) {
      all[2999] = std::numeric_limits<float>::quiet_NaN();
    }
    Workspace room(all_reduce_workspace_bytes(c.sizes, c.wire, DType::kF32, 3000));
    all_reduce_slices(levels, c.wire, elements(all), elements(all), room.data(), host_mover());
    EXPECT_TRUE(std::isnan(all[2999]));
    EXPECT_FALSE(std::isnan(all[0]));
  });
}

// What each level sends is the formula: of V bytes of the padded tensor, V (1/D_(l-1) - 1/D_l).
TEST_P(WiredTest, SendsWhatTheFormulaSays) {
  const Case& c = GetParam();
  for (const std::int64_t count : kCounts) {
    const std::int64_t slice = slice_of(c.sizes, count);
    std::vector<std::int64_t> expected;
    std::int64_t degree = 1;
    for (std::size_t i = 0; i < c.sizes.size(); ++i) {
      const Encoding encoding = {.format = c.wire.formats.empty() ? kF32 : c.wire.formats[i],
                                 .block = c.wire.block};
      const std::int64_t volume = wire_bytes(encoding, slice * product(c.sizes));
      expected.push_back(volume / degree - volume / (degree * c.sizes[i]));
      degree *= c.sizes[i];
    }
    on_levels(c.sizes, [&](std::int64_t /*rank*/, Levels levels) {
      std::vector<std::unique_ptr<CountedCommunicator>> counted;
      std::vector<Communicator*> borrowed;
      for (Communicator* level : levels) {
        counted.push_back(std::make_unique<CountedCommunicator>(*level));
        borrowed.push_back(counted.back().get());
      }
      std::vector<float> all(static_cast<std::size_t>(count), 1.0F);
      std::vector<float> own(static_cast<std::size_t>(slice));
      const auto expect_sent = [&](std::int64_t times) {
        for (std::size_t i = 0; i < counted.size(); ++i) {
          EXPECT_EQ(counted[i]->sent_bytes(), times * expected[i]) << "level " << i;
        }
      };
      Workspace reduce(reduce_workspace_bytes(c.sizes, c.wire, DType::kF32, slice));
      reduce_slices(borrowed, c.wire, elements(all), elements(own), reduce.data(), host_mover());
      expect_sent(1);
      Workspace gather(gather_workspace_bytes(c.sizes, c.wire, DType::kF32, slice));
      gather_slices(borrowed, c.wire, elements(own), elements(all), gather.data(), host_mover());
      expect_sent(2);
      Workspace both(all_reduce_workspace_bytes(c.sizes, c.wire, DType::kF32, count));
      all_reduce_slices(borrowed, c.wire, elements(all), elements(all), both.data(), host_mover());
      expect_sent(4);
    });
  }
}

// bf16 tensors go through the same formats; f32 on the wire then is exact.
TEST(Wired, GathersBf16) {
  constexpr std::int64_t kCount = 2773;
  const Sizes sizes = {2, 3};
  const std::int64_t slice = slice_of(sizes, kCount);
  for (const Wire& wire : {Wire{{kF32, kF32}}, Wire{{kInt8, kInt8}}, Wire{{kBF16, kInt8}}}) {
    on_levels(sizes, [&](std::int64_t rank, Levels levels) {
      std::vector<BFloat16> values(static_cast<std::size_t>(slice * 6));
      std::ranges::transform(values_of(0, kCount), values.begin(), to_bfloat16);
      std::vector<BFloat16> all(kCount);
      const ConstElements own = {
          .dtype = DType::kBF16,
          .data = reinterpret_cast<std::byte*>(values.data() + slice_index(sizes, rank) * slice),
          .count = slice};
      Workspace room(gather_workspace_bytes(sizes, wire, DType::kBF16, slice));
      gather_slices(levels,
                    wire,
                    own,
                    {.dtype = DType::kBF16,
                     .data = reinterpret_cast<std::byte*>(all.data()),
                     .count = kCount},
                    room.data(),
                    host_mover());
      const bool is_exact = wire.formats[0] == kF32;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const float value = to_float(values[i]);
        ASSERT_NEAR(
            to_float(all[i]), value, is_exact ? 0.0 : 5.0 / 127 / 2 + std::abs(value) / 256);
      }
    });
  }
}

}  // namespace
}  // namespace tessera
