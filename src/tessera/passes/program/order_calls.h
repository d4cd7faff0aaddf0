#pragma once

#include <cstdint>
#include <span>

#include "tessera/program/program.h"

namespace tessera {

// The work of a code for one microbatch, or its receives, as a schedule lists them.
struct WorkStep {
  Code code;
  std::int32_t microbatch = 0;
};

// Whether weight gradients are works of their own in this order.
bool splits_backward(std::span<const WorkStep> order);

// After lower(): calls the works in this order, then the update. Whichever call of a code comes
// first gets the variant that writes where the others add. Steps of codes that the program does not
// have (of a stage without layers, say) are left out, and so are receives, which are left to
// add_transfers(). Errors: kInternal where a code is not called once for each microbatch.
Program order_calls(Program program, std::span<const WorkStep> order);

}  // namespace tessera
