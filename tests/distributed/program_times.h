#pragma once

#include <functional>
#include <span>

#include "tessera/program/program.h"

namespace tessera {

// How long an instruction of the first stream takes.
using InstructionSeconds = std::function<double(const Instruction&)>;

// What a step takes whose ranks, the places of a pipeline, run these programs as the executor does:
// a stream after its own instructions and those that it waits for, none before the first stream has
// come to it, a transfer from when both of its ends have begun, for `hop`. Other streams take no
// time else. Errors: kInternal where ranks wait for each other for ever.
double step_seconds(std::span<const Program> programs,
                    const InstructionSeconds& seconds,
                    double hop = 0.0);

}  // namespace tessera
