#pragma once

#include "tessera/program/program.h"

namespace tessera {

// Gives every buffer an offset in the arena of its space: first what lives always, then the largest
// first at the lowest place that is free for its whole life. Where that leaves more than 3 % of the
// most bytes that live at one time between them, they are moved until it does not, if that is soon
// found. What lives always and has an offset keeps it, and the others lie above.
Program plan_memory(Program program);

}  // namespace tessera
