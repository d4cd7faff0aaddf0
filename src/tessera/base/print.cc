#include "tessera/base/print.h"

#include <cstdio>

namespace tessera {

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace tessera
