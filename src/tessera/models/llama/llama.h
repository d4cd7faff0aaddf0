#pragma once

#include <string_view>

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/decoder/decoder_family.h"
#include "tessera/models/family.h"
#include "tessera/models/model.h"

namespace tessera {

// Llama 3 and its relatives: pre-norm blocks of grouped-query attention with rotary positions and a
// SwiGLU feed-forward layer; biases of attention where a file has them.
// Source: Grattafiori et al. 2024, arXiv:2407.21783
using LlamaConfig = DecoderConfig;

// The published sizes: debug, 1B, 3B, 8B, 70B, 405B. Errors: kInternal for any other name.
LlamaConfig llama_flavor(std::string_view flavor);

// Writes the forward graph.
ModelOutputs llama(GraphBuilder& builder, const LlamaConfig& config, const ModelInputs& inputs);

const DecoderForm& llama_form();

// The model as the trainer takes it.
ModelDescription describe_llama(const LlamaConfig& config);

// What [model] says of a Llama, its flavor's sizes replaced by those that are given.
// Errors: as validate().
LlamaConfig llama_config(const ModelSection& section);

// model.name = "llama3".
ModelFamily llama_family();

}  // namespace tessera
