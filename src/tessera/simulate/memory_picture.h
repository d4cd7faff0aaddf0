#pragma once

#include <string>

#include "tessera/program/program.h"

namespace tessera {

// The arena of a rank over its step as an SVG image of at most 200 kB: bytes upwards, the
// instructions in the order of the calls from left to right, their actions above; a rectangle for
// each life of a buffer, in the colour of its category, whose title says what it is. Rectangles
// smaller than some pixels have no titles, and those of a category that touch are one. A line marks
// where most bytes are in use. Errors: kInternal where the program's memory is not planned.
std::string draw_memory(const Program& program);

}  // namespace tessera
