#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/models/model.h"
#include "tessera/train/commands.h"

namespace tessera {

// Continues options.prompt with the model of a checkpoint; calls `emit` with whole UTF-8 text as it
// arrives, the prompt first. Ends at options.max_tokens, at the end-of-text token or when the
// model's sequence length is reached. Errors: kInvalidConfig where there is no checkpoint;
// kInvalidData where it is damaged.
void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit);

}  // namespace tessera
