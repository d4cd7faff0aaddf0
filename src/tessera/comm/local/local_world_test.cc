#include "tessera/comm/local/local_world.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/mover.h"

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

// Moves nothing.
class BrokenMover final : public Mover {
 public:
  bool is_host() const override { return true; }

  void copy(const std::byte* /*from*/, std::span<std::byte> /*to*/) const override { fail_here(); }

  void copy_rows(const std::byte* /*from*/,
                 std::int64_t /*from_pitch*/,
                 std::byte* /*to*/,
                 std::int64_t /*to_pitch*/,
                 std::int64_t /*bytes*/,
                 std::int64_t /*count*/) const override {
    fail_here();
  }

  void zero(std::span<std::byte> /*to*/) const override {}

  void fold(Fold /*fold*/,
            std::span<const std::byte* const> /*sources*/,
            const Elements& /*out*/,
            std::span<std::byte* const> /*copies*/) const override {
    fail_here();
  }

  void encode(const ConstElements& /*from*/,
              std::int64_t /*padded*/,
              const Encoding& /*encoding*/,
              std::byte* /*to*/) const override {}

  void decode_sum(std::span<const std::byte* const> /*parts*/,
                  const Encoding& /*encoding*/,
                  const Elements& /*to*/) const override {}

  void finish() const override {}

 private:
  [[noreturn]] static void fail_here() { fail(ErrorCode::kDeviceError, "the device is gone"); }
};

// The others end, too, though it never said that it was done with their memory.
TEST(LocalWorld, ARankWhoseMoverFailsHoldsUpNoOther) {
  for (const bool gathers : {false, true}) {
    LocalWorld world(2);
    const BrokenMover broken;
    std::vector<ErrorCode> codes(2, ErrorCode::kInternal);
    std::vector<std::jthread> threads;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<World> self = world.join(rank);
        const std::vector<std::int64_t> members = {0, 1};
        const std::unique_ptr<Communicator> group =
            self->group(members, 0, rank == 0 ? static_cast<const Mover&>(broken) : host_mover());
        std::vector<float> in(4, 1.0F);
        std::vector<float> out(8);
        try {
          if (gathers) {
            group->all_gather(std::as_bytes(std::span(in)),
                              std::as_writable_bytes(std::span(out)),
                              in.size() * sizeof(float));
          } else {
            const Elements elements{.dtype = DType::kF32,
                                    .data = std::as_writable_bytes(std::span(in)).data(),
                                    .count = 4};
            group->all_reduce(Fold::kSum, elements, elements);
          }
        } catch (const Error& error) {
          codes[static_cast<std::size_t>(rank)] = error.code();
          self->abort(error.message());  // as a rank's end does
        }
      });
    }
    threads.clear();
    EXPECT_EQ(codes[0], ErrorCode::kDeviceError);
    EXPECT_EQ(codes[1], ErrorCode::kPeerFailure);
  }
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
