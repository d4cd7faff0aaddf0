#pragma once

#include <span>
#include <string_view>

namespace tessera {

// What is known of keys of a config.json that no family reads. Source: transformers'
// PretrainedConfig and the configs of its models.

// Whether a key leaves the logits alone: how texts are generated, how training drops out, where the
// file came from.
bool is_harmless_key(std::string_view key);

// Whether a model somewhere computes something else by this key.
bool changes_result(std::string_view key);

// What most models here have, and some do not.
enum class ModelPart { kRotary, kRmsNorm, kGate, kNormBefore };

// By which keys a config.json may say whether a model has it.
std::span<const std::string_view> keys_of(ModelPart part);

// Whether a key is a part that models here have, and that others leave out by false: true says
// nothing new, and false is another model. Families that lack one say so
// (HuggingFaceConfig::require_lacks()).
bool is_on_unless_false(std::string_view key);

}  // namespace tessera
