#pragma once

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/family.h"
#include "tessera/models/model.h"

namespace tessera {

// Gemma 2: norms before and after attention and feed-forward layer, all of whose gains are
// parameters plus 1; GELU gates; an embedding that is scaled; soft caps of attention's scores and
// of the logits; and by turns layers with a window and ones without.
// Source: Gemma team 2024, arXiv:2408.00118
ModelOutputs gemma2(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs);

// Gemma 3's text models: Gemma 2 with norms of each query and key, and with rotary frequencies of
// their own in layers with a window, and without a cap of scores; the published ones cap no logits.
// Source: Gemma team 2025, arXiv:2503.19786
ModelOutputs gemma3(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs);

// model.name = "gemma2" and "gemma3".
ModelFamily gemma2_family();
ModelFamily gemma3_family();

}  // namespace tessera
