#pragma once

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/family.h"
#include "tessera/models/model.h"

namespace tessera {

// Gemma 3's text models: norms before and after attention and feed-forward layer and of each query
// and key, all of whose gains are parameters plus 1; GELU gates; an embedding that is scaled; and
// by turns layers with a window and ones without, which have rotary frequencies of their own.
// Source: Gemma team 2025, arXiv:2503.19786
ModelOutputs gemma3(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs);

// model.name = "gemma3".
ModelFamily gemma3_family();

}  // namespace tessera
