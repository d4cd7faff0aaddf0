#pragma once

#include <string_view>

namespace tessera {

// A command's output, whole, to stdout. Whether all of it was written is asked when the program
// ends.
void print(std::string_view text);

}  // namespace tessera
