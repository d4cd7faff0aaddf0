#include "tessera/base/watchdog.h"

#include <atomic>

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Watchdog, CallsWhereItIsNotGoneInTime) {
  std::atomic<bool> late = false;
  const Watchdog watchdog(0.01, [&] {
    late = true;
    late.notify_all();
  });
  late.wait(false);
}

TEST(Watchdog, CallsNothingWhereItIs) {
  bool late = false;
  {
    const Watchdog watchdog(1e6, [&] { late = true; });
  }
  EXPECT_FALSE(late);
}

}  // namespace
}  // namespace tessera
