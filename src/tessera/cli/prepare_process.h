#pragma once

namespace tessera {

// What main() does first: a file that would pass the limit on its size (ulimit -f) is a write error
// like a full disk, not a signal; and a standard stream that the caller closed is /dev/null, so
// that no file gets its number, and with it what is printed. A mapped file that fails is an error,
// too.
void prepare_process();

}  // namespace tessera
