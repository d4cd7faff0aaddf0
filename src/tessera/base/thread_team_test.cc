#include "tessera/base/thread_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/test_delays.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

// What a round looks like from outside: how often each piece ran, and whether calls of a member
// overlapped or named a member that there is not.
struct Observed {
  explicit Observed(std::int64_t pieces, int size)
      : runs(static_cast<std::size_t>(pieces)), inside(static_cast<std::size_t>(size)) {}

  void enter(std::int64_t piece, int member) {
    ++runs[static_cast<std::size_t>(piece)];
    overlaps += inside.at(static_cast<std::size_t>(member)).exchange(true) ? 1 : 0;
  }

  void leave(int member) { inside[static_cast<std::size_t>(member)] = false; }

  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<bool>> inside;
  std::atomic<int> overlaps = 0;
};

void run_rounds(int size, int rounds) {
  ThreadTeam team(size);
  EXPECT_EQ(team.size(), size);
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t pieces = round * 7 % 23;
    Observed observed(pieces, size);
    team.run(pieces, [&](std::int64_t piece, int member) {
      observed.enter(piece, member);
      observed.leave(member);
    });
    ASSERT_TRUE(std::ranges::all_of(observed.runs, [](int runs) { return runs == 1; }))
        << pieces << " pieces in round " << round;
    ASSERT_EQ(observed.overlaps, 0) << round;
  }
}

TEST(ThreadTeam, RunsEachPieceOnce) {
  for (const int size : {1, 2, 3, 8}) {
    run_rounds(size, 3000);
  }
}

TEST(ThreadTeam, RunsEachPieceOnceOnDelayedThreads) {
  const Delays delays;
  const auto start = std::chrono::steady_clock::now();
  for (int size = 2; std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500);
       size = size % 4 + 2) {
    run_rounds(size, 50);
  }
  EXPECT_GT(delays.count(), 10);
}

// A member that is stuck with the first piece that it takes keeps nobody from the others: with
// pieces dealt out beforehand, this would never end.
TEST(ThreadTeam, AMemberThatIsHeldUpHoldsOnePieceBack) {
  constexpr std::int64_t kPieces = 64;
  ThreadTeam team(3);
  for (int held = 0; held < 3; ++held) {
    std::atomic<std::int64_t> ended = 0;
    std::atomic<bool> took = false;
    team.run(kPieces, [&](std::int64_t /*piece*/, int member) {
      if (member == held && !took.exchange(true)) {
        while (ended < kPieces - 1) {
          std::this_thread::yield();
        }
      }
      ++ended;
    });
    EXPECT_EQ(ended, kPieces);
  }
}

// The states of this process's threads, as the system names them.
std::string states() {
  std::string result;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    result += text.at(text.rfind(')') + 2);
  }
  return result;
}

// The caller, which asks, is the only one that does not sleep.
TEST(ThreadTeam, MembersWithoutWorkSleep) {
  ThreadTeam team(4);
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> pieces = 0;
    team.run(16, [&](std::int64_t /*piece*/, int /*member*/) { ++pieces; });
    EXPECT_EQ(pieces, 16);
    std::string found = states();
    for (int look = 0; look < 1000 && std::count(found.begin(), found.end(), 'R') > 1; ++look) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      found = states();
    }
    EXPECT_EQ(std::count(found.begin(), found.end(), 'R'), 1) << found;
  }
}

// Nor does a caller whose last piece is another's.
TEST(ThreadTeam, ACallerThatWaitsSleeps) {
  ThreadTeam team(2);
  std::atomic<int> begun = 0;
  std::string found;
  team.run(2, [&](std::int64_t /*piece*/, int member) {
    ++begun;
    while (begun < 2) {
      std::this_thread::yield();
    }
    for (int look = 0; member == 1 && look < 1000; ++look) {
      found = states();
      if (std::count(found.begin(), found.end(), 'R') == 1) {
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_EQ(std::count(found.begin(), found.end(), 'R'), 1) << found;
}

TEST(ThreadTeam, RefusesToBeEmpty) {
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { const ThreadTeam team(0); }), "0 threads");
}

}  // namespace
}  // namespace tessera
