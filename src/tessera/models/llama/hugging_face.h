#pragma once

#include <string>
#include <vector>

#include "tessera/models/family_sizes.h"
#include "tessera/models/hugging_face.h"
#include "tessera/models/llama/llama.h"

namespace tessera {

// The sizes of a Llama, and how config.json has them.
const FamilySizes<LlamaConfig>& llama_sizes();

// All weights, in the order in which transformers list them. A tied head is left out.
std::vector<HuggingFaceWeight> hugging_face_weights(const LlamaConfig& config);

// The text of config.json. Source: transformers' LlamaConfig.
std::string hugging_face_config(const LlamaConfig& config, const HuggingFaceFacts& facts);

// The inverse, with the defaults that older files leave out. Errors: kInvalidData naming file and
// key for biases, another activation, another rotary scaling than Llama 3.1's.
LlamaConfig llama_from_hugging_face(const HuggingFaceConfig& config);

}  // namespace tessera
