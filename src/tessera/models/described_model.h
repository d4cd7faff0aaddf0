#pragma once

#include <string_view>

#include "tessera/models/model.h"

namespace tessera {

// The model that describes itself so, with its adapters: equal JSON, equal graphs. Errors:
// kInvalidArgument where it is not the JSON of a family's model, with the key; kInvalidConfig where
// the sizes do not fit each other.
ModelDescription described_model(std::string_view json);

}  // namespace tessera
