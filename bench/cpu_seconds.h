#pragma once

#include <ctime>

namespace tessera {

// What a clock of CPU time has counted: CLOCK_THREAD_CPUTIME_ID, CLOCK_PROCESS_CPUTIME_ID.
inline double cpu_seconds(clockid_t clock) {
  timespec time = {};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace tessera
