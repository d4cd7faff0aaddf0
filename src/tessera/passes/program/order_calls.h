#pragma once

#include <cstdint>
#include <span>

#include "tessera/program/program.h"

namespace tessera {

// A forward or a backward of one microbatch, as a schedule lists them.
struct WorkStep {
  Code code;
  std::int32_t microbatch = 0;
};

// After lower(): calls the forwards and backwards in this order, then the update. Whichever call of
// a code comes first gets the variant that writes where the others add. Steps of codes that the
// program does not have (of a stage without layers, say) are left out.
// Errors: kInternal where a code is not called once for each microbatch.
Program order_calls(Program program, std::span<const WorkStep> order);

}  // namespace tessera
