#pragma once

#include <memory>

#include "tessera/backend/backend.h"

namespace tessera {

// A backend whose kernels do nothing: what is left is the executor's own cost.
std::unique_ptr<Backend> make_null_backend();

}  // namespace tessera
