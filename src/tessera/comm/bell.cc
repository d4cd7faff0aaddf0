#include "tessera/comm/bell.h"

#include "tessera/base/futex.h"

namespace tessera {

// A sleeper that is not seen here has come later, and finds the word changed.
void Bell::ring() {
  ++rings_;
  if (sleepers_ > 0) {
    wake(rings_);
  }
}

void Bell::sleep(std::uint32_t seen, std::chrono::microseconds at_most) {
  ++sleepers_;
  sleep_while(rings_, seen, at_most);
  --sleepers_;
}

}  // namespace tessera
