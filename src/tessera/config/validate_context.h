#pragma once

#include "tessera/config/run_config.h"

namespace tessera {

// How context ranks share sequences. Errors: kInvalidConfig.
void validate_context(const RunConfig& config);

// The heads that tensor ranks leave, where context ranks exchange them for tokens; of a model whose
// numbers of heads are known. Errors: kInvalidConfig with what would divide.
void validate_exchanged_heads(const RunConfig& config);

}  // namespace tessera
