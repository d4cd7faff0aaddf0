#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace tessera {

// Waiting in the kernel with a limit, which std::atomic::wait() has not.

// Sleeps until another thread wakes it, as long as `word` is `value`, or for `at_most`; may also
// return for no reason.
void sleep_while(const std::atomic<std::uint32_t>& word,
                 std::uint32_t value,
                 std::chrono::nanoseconds at_most);

// Wakes up to `threads` that sleep by `word`.
void wake(const std::atomic<std::uint32_t>& word, int threads = std::numeric_limits<int>::max());

}  // namespace tessera
