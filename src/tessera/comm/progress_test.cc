#include "tessera/comm/progress.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include <gtest/gtest.h>

#include "tessera/comm/bell.h"
#include "tessera/comm/wait_limit.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

TEST(Progress, SaysWhereARankIs) {
  Progress progress;
  EXPECT_EQ(progress.place(), "before its first call");
  progress.start_call(1);
  EXPECT_EQ(progress.place(), "at call 1");
  EXPECT_EQ(progress.add_calls({"F of microbatch 0", "B of microbatch 0"}), 0U);
  EXPECT_EQ(progress.place(), "at call 1 (B of microbatch 0)");
  EXPECT_EQ(progress.add_calls({"validation"}), 2U);
  progress.start_call(2);
  EXPECT_EQ(progress.place(), "at call 0 (validation)");
  progress.start_call(3);
  EXPECT_EQ(progress.place(), "at call 3");
  EXPECT_EQ(progress.finished(), 0U);
  progress.finish_instruction();
  progress.finish_instruction();
  EXPECT_EQ(progress.finished(), 2U);
}

class Counted final : public RunProgress {
 public:
  std::uint64_t finished() const override { return count; }

  std::uint64_t count = 0;
};

// Whether a wait of that many deadlines is given up; `work` is done every eighth of one.
template <class Work>
bool is_given_up(WaitLimit limit, double deadline_seconds, double deadlines, const Work& work) {
  const auto start = WaitLimit::Clock::now();
  const std::chrono::duration<double> step(deadline_seconds / 8);
  while (WaitLimit::Clock::now() - start <
         std::chrono::duration<double>(deadlines * deadline_seconds)) {
    if (limit.is_over()) {
      return true;
    }
    work();
    std::this_thread::sleep_for(step);
  }
  return limit.is_over();
}

TEST(WaitLimit, StartsAnewWithProgress) {
  constexpr double kDeadlineSeconds = 0.4;
  const WorldOptions options = {.deadline_seconds = kDeadlineSeconds};
  Counted progress;
  const auto nothing = [] {};
  EXPECT_FALSE(is_given_up({options, &progress}, kDeadlineSeconds, 2.5, [&] { ++progress.count; }));
  EXPECT_TRUE(is_given_up({options, &progress}, kDeadlineSeconds, 2.5, nothing));
  EXPECT_TRUE(is_given_up({options, nullptr}, kDeadlineSeconds, 1.5, nothing));
}

TEST(WaitLimit, OfARunThatIsToStopDoesNot) {
  constexpr double kDeadlineSeconds = 60;
  const WorldOptions options = {.deadline_seconds = kDeadlineSeconds,
                                .stopping = [] { return true; },
                                .stopping_seconds = [] { return 0.1; }};
  Counted progress;
  EXPECT_TRUE(is_given_up({options, &progress}, 0.1, 2.5, [&] { ++progress.count; }));
}

TEST(Bell, WakesAThreadThatSleeps) {
  Bell bell;
  std::atomic<int> answers = 0;
  std::jthread thread([&] {
    for (int i = 0; i < 1000; ++i) {
      std::uint32_t seen = bell.rings();
      while (seen == static_cast<std::uint32_t>(i)) {
        bell.sleep(seen, std::chrono::minutes(1));
        seen = bell.rings();
      }
      ++answers;
    }
  });
  for (int i = 0; i < 1000; ++i) {
    bell.ring();
    while (answers <= i) {
      std::this_thread::yield();
    }
  }
  bell.sleep(bell.rings() - 1, std::chrono::minutes(1));  // which it has heard already
  bell.sleep(bell.rings(), milliseconds(1));              // which nobody ends
}

}  // namespace
}  // namespace tessera
