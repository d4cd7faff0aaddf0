#pragma once

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/family.h"
#include "tessera/models/model.h"

namespace tessera {

// OLMo 2: norms after attention and feed-forward layer, on the branch that is added, and norms of
// all queries and of all keys together. Where heads are cut over tensor ranks, these are gathered
// for their norm.
// Source: OLMo team 2024, arXiv:2501.00656
ModelOutputs olmo2(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs);

// model.name = "olmo2".
ModelFamily olmo2_family();

}  // namespace tessera
