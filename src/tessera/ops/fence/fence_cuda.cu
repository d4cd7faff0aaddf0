#include "tessera/ops/fence/fence.h"

namespace tessera {

// What an instruction waits for is its stream's matter.
void run(const FenceAttrs&, cuda::Context&, const Views&) {}

}  // namespace tessera
