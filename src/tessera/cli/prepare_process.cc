#include "tessera/cli/prepare_process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <initializer_list>

#include <fcntl.h>
#include <unistd.h>

#include "tessera/base/mapped_files.h"

namespace tessera {

void prepare_process() {
  guard_mapped_files();
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const bool closed = ::fcntl(stream, F_GETFD) == -1 && errno == EBADF;
    // The lowest free number is this one, as those below are open by now.
    if (closed && ::open("/dev/null", O_RDWR) != stream) {
      std::abort();
    }
  }
}

}  // namespace tessera
