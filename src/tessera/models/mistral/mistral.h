#pragma once

#include "tessera/models/family.h"

namespace tessera {

// Mistral from 7B v0.2 and Nemo on: Llama's graph with a width of heads of its own, without the
// sliding window of v0.1. model.name = "mistral".
// Source: Jiang et al. 2023, arXiv:2310.06825
ModelFamily mistral_family();

}  // namespace tessera
