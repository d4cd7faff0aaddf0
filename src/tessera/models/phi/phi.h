#pragma once

#include "tessera/models/family.h"

namespace tessera {

// Phi-3: Llama's graph with a sliding window; q, k and v are one matrix of its files, gate and up
// another; its 128k forms scale positions by LongRoPE. model.name = "phi3".
// Source: Abdin et al. 2024, arXiv:2404.14219
ModelFamily phi3_family();

}  // namespace tessera
