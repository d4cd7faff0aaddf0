#include "tessera/base/futex.h"

#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera {

void sleep_while(const std::atomic<std::uint32_t>& word,
                 std::uint32_t value,
                 std::chrono::nanoseconds at_most) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const timespec limit = {.tv_sec = at_most.count() / kSecond,
                          .tv_nsec = at_most.count() % kSecond};
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &limit, nullptr, 0);
}

void wake(const std::atomic<std::uint32_t>& word, int threads) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

}  // namespace tessera
