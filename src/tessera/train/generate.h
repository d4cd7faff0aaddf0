#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/tokenizer.h"
#include "tessera/train/commands.h"

namespace tessera {

// The tokens that a continuation of `prompt` starts from, begin-of-text first.
// Errors: kInvalidConfig where there is none, or no room for another in `sequence_length`.
std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer,
                                        const std::string& prompt,
                                        std::int64_t sequence_length);

// Continues options.prompt with the model of a checkpoint; calls `emit` with whole UTF-8 text as it
// arrives, the prompt first. Ends at options.max_tokens, at the end-of-text token or when the
// model's sequence length is reached. Errors: kInvalidConfig where there is no checkpoint;
// kInvalidData where it is damaged, or the tokenizer is not its own.
void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit);

}  // namespace tessera
