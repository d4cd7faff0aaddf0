#pragma once

#include <nlohmann/json.hpp>

#include "bench/gpu_train_case.h"

namespace tessera {

// The losses of a case's model in bf16 and in both recipes of float8, each after so many steps on
// the same text, a Markov chain: an object of "bf16", "tensorwise" and "rowwise".
nlohmann::json run_losses(const Case& test, int steps, bool on_cpu);

}  // namespace tessera
