#pragma once

#include <string_view>

#include "tessera/models/model.h"
#include "tessera/models/model_section.h"

namespace tessera {

// The resolved section whose description has this JSON (ModelDescription::json), without its
// adapters. Errors: kInvalidArgument where it is not the JSON of a family's model, with the key.
ModelSection described_section(std::string_view json);

// The model that describes itself so, with its adapters: equal JSON, equal graphs. Errors: as
// above; kInvalidConfig where the sizes do not fit each other.
ModelDescription described_model(std::string_view json);

}  // namespace tessera
