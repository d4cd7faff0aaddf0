#pragma once

#include "tessera/models/family.h"

namespace tessera {

// Mistral: Llama's graph with a width of heads of its own and, in 7B v0.1, a sliding window.
// model.name = "mistral".
// Source: Jiang et al. 2023, arXiv:2310.06825
ModelFamily mistral_family();

}  // namespace tessera
