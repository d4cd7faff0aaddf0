#pragma once

#include <map>
#include <utility>

#include "tessera/mesh/axes.h"
#include "tessera/program/program.h"

namespace tessera {

// What both ends call a channel; those of different ranks may have one name.
using ChannelName = std::pair<AxisSizes, ChannelPlaces>;

// The channels that a program's sends and receives go through, each with the first instruction that
// does.
std::map<ChannelName, const Instruction*> channels_of(const Program& program);

}  // namespace tessera
