#include "tessera/comm/local/local_world.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Two pairs: 1 ms inside a pair, 10 ms and 1 MB/s (of a link that a pair shares: half of 2 MB/s)
// between them.
std::vector<Level> two_pairs() {
  return {{.name = "pair", .size = 2, .latency = 1e-3},
          {.name = "node", .size = 2, .bandwidth = 2e6, .latency = 10e-3, .shared = true}};
}

// Seconds that rank 0 needs for `body(communicator)` on a group of `members`.
template <class Body>
double seconds_of(const std::vector<std::int64_t>& members, const Body& body) {
  LocalWorld world(4, {}, two_pairs());
  double seconds = 0;
  std::vector<std::jthread> threads;
  for (const std::int64_t rank : members) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> self = world.join(rank);
      const std::unique_ptr<Communicator> group = self->group(members);
      const Clock::time_point start = Clock::now();
      body(*group);
      if (rank == 0) {
        seconds = std::chrono::duration<double>(Clock::now() - start).count();
      }
    });
  }
  threads.clear();
  return seconds;
}

// What a throttle promises is how long an operation takes at least.
TEST(LocalWorld, ThrottledOperationsKeepThePaceOfTheirLevel) {
  const auto barrier = [](Communicator& group) { group.barrier(); };
  EXPECT_GE(seconds_of({0, 1}, barrier), 1e-3);
  EXPECT_GE(seconds_of({0, 2}, barrier), 10e-3);
  EXPECT_GE(seconds_of({0, 1, 2, 3}, barrier), 10e-3);

  const auto all_reduce = [](Communicator& group) {
    std::vector<float> values(5000, 2.0F);  // each rank sends half of it twice: 20 KB
    const Elements elements{.dtype = DType::kF32,
                            .data = std::as_writable_bytes(std::span(values)).data(),
                            .count = 5000};
    group.all_reduce(Fold::kSum, elements, elements);
    EXPECT_EQ(values.front(), 4.0F);
    EXPECT_EQ(values.back(), 4.0F);
  };
  EXPECT_GE(seconds_of({0, 2}, all_reduce), 10e-3 + 20e-3);

  const auto all_gather = [](Communicator& group) {
    const std::vector<std::byte> part(5000, std::byte(group.rank()));
    std::vector<std::byte> all(20000);  // each rank sends what three others lack: 15 KB
    group.all_gather(part, all, 5000);
    EXPECT_EQ(all.back(), std::byte(3));
  };
  EXPECT_GE(seconds_of({0, 1, 2, 3}, all_gather), 10e-3 + 15e-3);
}

}  // namespace
}  // namespace tessera
