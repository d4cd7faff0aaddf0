#pragma once

#include "tessera/runtime/executor.h"

namespace tessera {

// Of the parameters that this rank holds, frozen ones too, in f64: infinite, or a NaN, where one of
// them is. Errors: what moving them to the host throws.
double sum_of_squares(Executor& executor);

}  // namespace tessera
