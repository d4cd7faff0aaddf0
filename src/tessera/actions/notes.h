#pragma once

#include <string>
#include <vector>

#include "tessera/actions/action_table.h"

namespace tessera {

// What is worth knowing of a table that may run: losses or gradients that are not summed in rising
// order, a rank that idles for more than 40 % of the step, and more forwards held than the schedule
// of this shape with the most needs.
std::vector<std::string> notes(const ActionTable& table);

}  // namespace tessera
