#pragma once

#include <span>
#include <vector>

#include "tessera/passes/program/overlap/waits.h"

namespace tessera {

// The code of what is called apart from `code`'s work.
Code code_of(const Code& work, CodeKind kind);

// Sets the lives of the buffers by their uses in `codes`, in the order of a microbatch, as if all
// ran in order; what a collective uses lives until the computation has waited for it. `finishes`
// are those of each code. What is gathered ahead, or left to a fence, may live beside that of
// another microbatch: it gets a pool, and so does the event of the fence.
void set_lives(Program& program,
               std::span<const OverlappedCode> codes,
               std::span<const std::vector<Finish>> finishes);

}  // namespace tessera
