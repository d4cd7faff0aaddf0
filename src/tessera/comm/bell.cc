#include "tessera/comm/bell.h"

#include "tessera/base/futex.h"

namespace tessera {

// A sleeper that is not seen here has come later, and finds the word changed.
void Bell::ring() {
  ++rings_;
  if (has_sleeper_) {
    wake(rings_);
  }
}

void Bell::sleep(std::uint32_t seen, std::chrono::microseconds at_most) {
  has_sleeper_ = true;
  sleep_while(rings_, seen, at_most);
  has_sleeper_ = false;
}

}  // namespace tessera
