#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

// Everybody's text, in rank order. Errors: as Communicator's operations.
std::vector<std::string> gather_texts(Communicator& group, std::string_view text);

}  // namespace tessera
