#pragma once

#include <cstdio>

namespace tessera {

// Columns of the terminal that `file` is; 80 where it is none.
int terminal_width(std::FILE* file);

}  // namespace tessera
