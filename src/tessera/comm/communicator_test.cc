// What every communicator must do, on ranks that are threads.

#include "tessera/comm/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/half.h"
#include "tessera/comm/local/local_world.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Runs body(world) on every rank; returns each rank's error, empty where there was none.
std::vector<std::string> on_ranks(LocalWorld& world, const std::function<void(World&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world.num_ranks()));
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < world.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*world.join(rank));
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] =
            format("{}: {}", to_string(error.code()), error.message());
      }
    });
  }
  threads.clear();
  return errors;
}

void run(std::int64_t num_ranks, const std::function<void(World&, Communicator&)>& body) {
  LocalWorld world(num_ranks, {.deadline_seconds = 20});
  const std::vector<std::string> errors = on_ranks(world, [&](World& self) {
    std::vector<std::int64_t> everybody(static_cast<std::size_t>(num_ranks));
    std::iota(everybody.begin(), everybody.end(), 0);
    body(self, *self.group(everybody));
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
}

// Small whole numbers, so that sums in any order are exact.
float value_of(std::int64_t rank, std::int64_t index) {
  return static_cast<float>((rank * 37 + index * 11) % 23) - 9.0F;
}

template <class T>
std::vector<T> values_of(std::int64_t rank, std::int64_t count) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      values.push_back(to_bfloat16(value_of(rank, i)));
    } else {
      values.push_back(static_cast<T>(value_of(rank, i)));
    }
  }
  return values;
}

template <class T>
T folded(Fold fold, std::int64_t num_ranks, std::int64_t index) {
  float result = value_of(0, index);
  for (std::int64_t rank = 1; rank < num_ranks; ++rank) {
    const float next = value_of(rank, index);
    result = fold == Fold::kSum ? result + next : std::max(result, next);
  }
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(result);
  } else {
    return static_cast<T>(result);
  }
}

template <class T>
std::span<std::byte> bytes(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

template <class T>
Elements elements(DType dtype, std::vector<T>& values) {
  return {.dtype = dtype,
          .data = bytes(values).data(),
          .count = static_cast<std::int64_t>(values.size())};
}

class CommunicatorTest : public testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorTest, testing::Values(1, 2, 3, 4, 7));

constexpr std::int64_t kSizes[] = {0, 1, 5, 63, 64, 1000, 4097, 100'003};

// The part of `rank` among values that are `cut` short of `num_ranks` whole parts of `stride`.
Part cut_part(std::int64_t rank, std::int64_t num_ranks, std::int64_t stride, std::int64_t cut) {
  return part_of(rank, stride, std::max<std::int64_t>(num_ranks * stride - cut, 0));
}

TEST(Communicator, PartsCoverEverythingOnce) {
  for (const std::int64_t stride : {1, 3, 8}) {
    for (std::int64_t size = 0; size <= 4 * stride; ++size) {
      std::int64_t end = 0;
      for (std::int64_t rank = 0; rank < 4; ++rank) {
        const Part part = part_of(rank, stride, size);
        EXPECT_EQ(part.begin, end);
        EXPECT_LE(part.size, stride);
        end += part.size;
      }
      EXPECT_EQ(end, size);
    }
  }
}

// Part r of `all` holds rank r's values.
void expect_parts(const std::vector<float>& all, std::int64_t stride) {
  std::int64_t rank = 0;
  std::int64_t index = 0;
  for (const float value : all) {
    ASSERT_EQ(value, value_of(rank, index));
    ++index;
    rank += index == stride ? 1 : 0;
    index = index == stride ? 0 : index;
  }
}

TEST_P(CommunicatorTest, AllGather) {
  run(GetParam(), [](World& self, Communicator& group) {
    for (const std::int64_t stride : kSizes) {
      for (const std::int64_t cut : {std::int64_t{0}, stride / 2, stride + stride / 3}) {
        for (const bool in_place : {false, true}) {
          const Part own = cut_part(self.rank(), group.size(), stride, cut);
          const Part last = cut_part(group.size() - 1, group.size(), stride, cut);
          std::vector<float> all(static_cast<std::size_t>(last.begin + last.size), -1.0F);
          auto part = values_of<float>(self.rank(), own.size);
          std::span<float> given(part);
          if (in_place) {
            given = std::span(all).subspan(static_cast<std::size_t>(own.begin), given.size());
            std::ranges::copy(part, given.begin());
          }
          group.all_gather(
              std::as_bytes(given), bytes(all), static_cast<std::size_t>(stride) * sizeof(float));
          expect_parts(all, stride);
        }
      }
    }
  });
}

struct ScatterCase {
  Fold fold;
  std::int64_t stride;
  std::int64_t cut;
  bool in_place;
};

template <class T>
void reduce_scatter_parts(World& self,
                          Communicator& group,
                          DType dtype,
                          const ScatterCase& scatter) {
  const Part own = cut_part(self.rank(), group.size(), scatter.stride, scatter.cut);
  const Part last = cut_part(group.size() - 1, group.size(), scatter.stride, scatter.cut);
  auto all = values_of<T>(self.rank(), last.begin + last.size);
  std::vector<T> other(static_cast<std::size_t>(own.size), T{});
  Elements part = elements(dtype, other);
  if (scatter.in_place) {
    part.data = bytes(all).data() + static_cast<std::size_t>(own.begin) * sizeof(T);
  }
  group.reduce_scatter(scatter.fold, elements(dtype, all), part, scatter.stride);
  const T* const result = reinterpret_cast<const T*>(part.data);
  for (std::int64_t i = 0; i < own.size; ++i) {
    ASSERT_EQ(result[i], folded<T>(scatter.fold, group.size(), own.begin + i));
  }
}

template <class T>
void check_reduce_scatter(DType dtype, std::int64_t num_ranks) {
  run(num_ranks, [&](World& self, Communicator& group) {
    for (const Fold fold : {Fold::kSum, Fold::kMax}) {
      for (const std::int64_t stride : kSizes) {
        for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{70}}) {
          for (const bool in_place : {false, true}) {
            reduce_scatter_parts<T>(
                self,
                group,
                dtype,
                {.fold = fold, .stride = stride, .cut = cut, .in_place = in_place});
          }
        }
      }
    }
  });
}

TEST_P(CommunicatorTest, ReduceScatter) {
  check_reduce_scatter<float>(DType::kF32, GetParam());
  check_reduce_scatter<BFloat16>(DType::kBF16, GetParam());
  check_reduce_scatter<std::int64_t>(DType::kI64, GetParam());
}

template <class T>
void check_all_reduce(DType dtype, std::int64_t num_ranks, bool in_place) {
  run(num_ranks, [&](World& self, Communicator& group) {
    for (const Fold fold : {Fold::kSum, Fold::kMax}) {
      for (const std::int64_t size : kSizes) {
        auto in = values_of<T>(self.rank(), size);
        std::vector<T> other(in.size(), T{});
        std::vector<T>& out = in_place ? in : other;
        group.all_reduce(fold, elements(dtype, in), elements(dtype, out));
        for (std::int64_t i = 0; i < size; ++i) {
          ASSERT_EQ(out[static_cast<std::size_t>(i)], folded<T>(fold, num_ranks, i));
        }
      }
    }
  });
}

TEST_P(CommunicatorTest, AllReduce) {
  for (const bool in_place : {false, true}) {
    check_all_reduce<float>(DType::kF32, GetParam(), in_place);
    check_all_reduce<BFloat16>(DType::kBF16, GetParam(), in_place);
    check_all_reduce<std::int64_t>(DType::kI64, GetParam(), in_place);
  }
}

// Sums fold in rank order: bits that a computation in that order gives, on every rank.
TEST_P(CommunicatorTest, SumsFoldInRankOrder) {
  constexpr std::size_t kCount = 3000;
  const auto odd = [](std::int64_t rank, std::size_t i) {
    return 1.0F / static_cast<float>(3 + rank + 7 * static_cast<std::int64_t>(i));
  };
  run(GetParam(), [&](World& self, Communicator& group) {
    std::vector<float> values(kCount);
    std::vector<float> expected(kCount, 0.0F);
    for (std::size_t i = 0; i < kCount; ++i) {
      values[i] = odd(self.rank(), i);
      expected[i] = odd(0, i);
      for (std::int64_t rank = 1; rank < self.size(); ++rank) {
        expected[i] += odd(rank, i);
      }
    }
    group.all_reduce(Fold::kSum, elements(DType::kF32, values), elements(DType::kF32, values));
    ASSERT_EQ(values, expected);
  });
}

TEST_P(CommunicatorTest, AllToAll) {
  run(GetParam(), [](World& self, Communicator& group) {
    for (const std::int64_t size : kSizes) {
      auto send = values_of<float>(self.rank(), size * group.size());
      std::vector<float> receive(send.size(), -1.0F);
      group.all_to_all(bytes(send), bytes(receive));
      std::size_t i = 0;
      for (std::int64_t from = 0; from < group.size(); ++from) {
        for (std::int64_t index = 0; index < size; ++index, ++i) {
          ASSERT_EQ(receive[i], value_of(from, self.rank() * size + index));
        }
      }
    }
  });
}

// Nobody returns from an operation while another rank still reads its memory.
TEST_P(CommunicatorTest, MemoryMayBeUsedAgainAtOnce) {
  run(GetParam(), [](World& self, Communicator& group) {
    std::vector<float> in(777);
    std::vector<float> out(in.size());
    for (int round = 0; round < 300; ++round) {
      std::fill(in.begin(), in.end(), static_cast<float>(round + self.rank()));
      group.all_reduce(Fold::kMax, elements(DType::kF32, in), elements(DType::kF32, out));
      std::fill(in.begin(), in.end(), 1e9F);
      for (const float value : out) {
        ASSERT_EQ(value, static_cast<float>(round + self.size() - 1));
      }
    }
  });
}

TEST_P(CommunicatorTest, BarrierHoldsEverybody) {
  std::atomic<std::int64_t> arrived = 0;
  run(GetParam(), [&](World& self, Communicator& group) {
    for (std::int64_t round = 1; round <= 50; ++round) {
      ++arrived;
      group.barrier();
      EXPECT_GE(arrived, round * self.size());
    }
  });
}

// Groups of one run do not disturb each other, and may list ranks in any order.
TEST(Communicator, GroupsAreIndependent) {
  run(6, [](World& self, Communicator& /*everybody*/) {
    const std::int64_t column = self.rank() % 2;
    const std::int64_t row = self.rank() / 2;
    const auto rows = self.group(std::vector{row * 2 + 1, row * 2});
    const auto columns = self.group(std::vector{column, column + 2, column + 4});
    EXPECT_EQ(rows->rank(), 1 - column);
    EXPECT_EQ(columns->rank(), row);
    for (int round = 0; round < 100; ++round) {
      std::vector<float> value = {static_cast<float>(self.rank())};
      rows->all_reduce(Fold::kSum, elements(DType::kF32, value), elements(DType::kF32, value));
      ASSERT_EQ(value[0], static_cast<float>(4 * row + 1));
      columns->all_reduce(Fold::kSum, elements(DType::kF32, value), elements(DType::kF32, value));
      ASSERT_EQ(value[0], 15.0F);
    }
  });
}

TEST(Communicator, NamesWhoDidNotArrive) {
  LocalWorld world(4, {.deadline_seconds = 0.2});
  const auto start = std::chrono::steady_clock::now();
  const auto errors = on_ranks(world, [](World& self) {
    const auto group = self.group(std::vector<std::int64_t>{0, 1, 2, 3});
    if (self.rank() == 2) {
      return;
    }
    std::vector<float> values(10);
    group->all_reduce(Fold::kSum, elements(DType::kF32, values), elements(DType::kF32, values));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(errors[2], "");
  for (const std::size_t rank : {0U, 1U, 3U}) {
    EXPECT_THAT(errors[rank],
                AllOf(HasSubstr("all_reduce of 40 bytes: no answer within 0.2 s"),
                      HasSubstr("missing: rank 2")));
  }
}

TEST(Communicator, AbortEndsEveryWait) {
  LocalWorld world(3, {.deadline_seconds = 60});
  const auto errors = on_ranks(world, [](World& self) {
    const auto group = self.group(std::vector<std::int64_t>{0, 1, 2});
    if (self.rank() == 1) {
      self.abort("rank 1 ran out of memory");
      return;
    }
    group->barrier();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 ran out of memory"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 ran out of memory"));
}

TEST(Communicator, FindsMembersThatDisagree) {
  LocalWorld world(2, {.deadline_seconds = 20});
  const auto errors = on_ranks(world, [](World& self) {
    const auto group = self.group(std::vector<std::int64_t>{0, 1});
    std::vector<float> values(self.rank() == 0 ? 8 : 9);
    group->all_reduce(Fold::kSum, elements(DType::kF32, values), elements(DType::kF32, values));
  });
  const std::string message = errors[0] + errors[1];
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("calls all_reduce of 32 bytes"), HasSubstr("calls all_reduce of 36 bytes")));
}

TEST(Communicator, RefusesBadGroups) {
  LocalWorld world(2);
  const std::unique_ptr<World> self = world.join(0);
  const auto message = [&](const std::vector<std::int64_t>& members) -> std::string {
    try {
      self->group(members);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(message({0, 2}), "a group of ranks 0, 2: expected distinct ranks of [0, 2)");
  EXPECT_EQ(message({0, 0}), "a group of ranks 0, 0: expected distinct ranks of [0, 2)");
  EXPECT_EQ(message({1}), "a group of ranks 1: expected rank 0 among them");
}

}  // namespace
}  // namespace tessera
