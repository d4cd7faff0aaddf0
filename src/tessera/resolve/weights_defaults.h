#pragma once

#include <filesystem>
#include <optional>

#include "tessera/config/config.h"
#include "tessera/config/run_config.h"

namespace tessera {

// The tokenizer beside the weights that model.weights names; nothing where there is none. Errors:
// as weights_checkpoint().
std::optional<std::filesystem::path> weights_tokenizer(const std::filesystem::path& weights);

// `config` with what follows from its model.weights where no key says it: the family, and for text
// the tokenizer. Where they are gone and the run goes on from a checkpoint, its model and its
// tokenizer. A tokenizer that is not the weights' own is warned of where it gives their ids other
// tokens. `says`: whether this process logs. Errors: kInvalidConfig where text has no tokenizer, or
// one would be trained for weights that have their own.
RunConfig with_weights_defaults(RunConfig config, ConfigUse use, bool says);

}  // namespace tessera
