#pragma once

#include "tessera/models/decoder/decoder_family.h"
#include "tessera/models/family.h"
#include "tessera/models/model.h"

namespace tessera {

// Qwen2 and Qwen2.5: a Llama whose queries, keys and values have biases.
// Source: Yang et al. 2024, arXiv:2407.10671
ModelOutputs qwen2(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs);

// Qwen3, dense: a Llama whose queries and keys are normed, head by head, before they are turned;
// the width of a head is its own.
// Source: Qwen team 2025, arXiv:2505.09388
ModelOutputs qwen3(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs);

// model.name = "qwen2", "qwen3".
ModelFamily qwen2_family();
ModelFamily qwen3_family();

}  // namespace tessera
