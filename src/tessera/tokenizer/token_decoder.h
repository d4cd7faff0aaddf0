#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// The text of written tokens after all steps, joined.
std::string run_decoder(std::span<const DecoderStep> steps, std::vector<std::string> tokens);

// The bytes that a token stands for inside a text, where no step sees its neighbours.
std::string decode_alone(std::span<const DecoderStep> steps, const std::string& token);

}  // namespace tessera
