#include "tessera/backend/cuda/machine/limits.h"

namespace tessera::cuda {

Limits& limits() {
  static Limits limits;
  return limits;
}

}  // namespace tessera::cuda
