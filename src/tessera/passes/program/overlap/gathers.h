#pragma once

#include <cstdint>
#include <vector>

#include "tessera/passes/program/overlap/code_body.h"

namespace tessera {

// Moves each gather to where the block begins that is `layers` before the one that reads it, but
// not before its operands are there.
void issue_gathers_early(CodeBody& body, std::int64_t layers);

// Takes out the gathers for the first `layers` blocks, which are to be called while the last
// `layers` blocks of another code, or of this one, compute: those that may run beside any of these,
// and whose results no other code uses.
std::vector<Instruction> take_gathers_ahead(std::vector<CodeBody>& codes,
                                            CodeBody& body,
                                            std::int64_t layers);

}  // namespace tessera
