#include "tessera/base/terminal.h"

#include <sys/ioctl.h>

namespace tessera {

int terminal_width(std::FILE* file) {
  constexpr int kDefaultWidth = 80;
  winsize size{};
  const bool known = ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kDefaultWidth;
}

}  // namespace tessera
