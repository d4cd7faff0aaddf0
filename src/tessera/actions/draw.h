#pragma once

#include <cstddef>
#include <string>

#include "tessera/actions/action_table.h"
#include "tessera/actions/timeline.h"

namespace tessera {

// The table over time, a line per rank, of at most `width` columns or 20 for the time: actions as
// long as they take, with their names as far as these fit, and dots where the rank is idle. A last
// line says up to which tick the lines go, if they do not go to the end.
std::string draw_table(const ActionTable& table, const Timeline& timeline, std::size_t width);

// The same as an SVG image: a bar per action with its microbatch, in the colour of its kind,
// lighter the later its stage is on the rank; names and ticks as tooltips.
std::string draw_gantt(const ActionTable& table, const Timeline& timeline);

}  // namespace tessera
