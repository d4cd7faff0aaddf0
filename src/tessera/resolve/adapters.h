#pragma once

#include <filesystem>
#include <span>

#include "tessera/checkpoint/manifest.h"
#include "tessera/config/run_config.h"
#include "tessera/models/hugging_face_weight.h"
#include "tessera/models/model.h"

namespace tessera {

// `model` with the adapters of config.lora, if there are any; `theirs` are its weights in Hugging
// Face's form, by whose names targets may go too. Errors: kInvalidConfig naming the key, for a
// target that no weight has (with those that there are) and for a rank that saves nothing.
ModelDescription with_adapters(ModelDescription model,
                               const RunConfig& config,
                               std::span<const HuggingFaceWeight> theirs = {});

// That a checkpoint has the adapters of `model`. Errors: kInvalidConfig with both.
void require_same_adapters(const std::filesystem::path& checkpoint,
                           const CheckpointMeta& meta,
                           const ModelDescription& model);

}  // namespace tessera
