#pragma once

#include "tessera/config/run_config.h"
#include "tessera/models/model.h"

namespace tessera {

// The model that `config` names, its flavor's sizes replaced by those that are given. Models are
// registered in resolve.cc. Errors: kInvalidConfig naming the key and
// where it was set.
ModelDescription resolve_model(const RunConfig& config);

// `config` with everything that follows from other keys or the machine written out: model sizes,
// threads. Errors: kInvalidConfig.
RunConfig resolve(RunConfig config);

// The same for all but [model]. Errors: kInvalidConfig.
RunConfig resolve_run(RunConfig config);

}  // namespace tessera
