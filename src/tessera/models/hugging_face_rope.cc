#include "tessera/models/hugging_face_rope.h"

#include <array>

#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr const char* kParameters = "rope_parameters.";
constexpr const char* kScaling = "rope_scaling.";

// Before the keys of the one object that has all.
std::string object_of(const HuggingFaceRopeKeys& keys) {
  return keys.layers == nullptr ? kParameters : format("{}{}.", kParameters, keys.layers);
}

// The number's key: in that object, or the family's own.
std::string key_of(const HuggingFaceConfig& config,
                   const HuggingFaceRopeKeys& keys,
                   const std::string& inner,
                   const char* own) {
  const std::string in_one = object_of(keys) + inner;
  return config.has(in_one) ? in_one : own;
}

void require_agreement(const HuggingFaceConfig& config,
                       const HuggingFaceRopeKeys& keys,
                       const std::string& key,
                       double value,
                       const std::string& inner,
                       const char* own) {
  const std::array<std::string, 4> names = {own, inner, object_of(keys) + inner, kScaling + inner};
  for (const std::string& name : names) {
    if (name != key) {
      config.require_same(name, value, key);
    }
  }
}

// The type's name is "type" in older files. Empty: the object has none.
std::string type_key_in(const HuggingFaceConfig& config, const std::string& object) {
  const std::string newer = object + "rope_type";
  const std::string older = object + "type";
  if (config.has(newer) && config.has(older)) {
    config.require(config.text(older, "") == config.text(newer, ""),
                   older,
                   format("\"{}\", as \"{}\" has it", config.text(newer, ""), newer));
  }
  return config.has(newer) ? newer : config.has(older) ? older : "";
}

}  // namespace

HuggingFaceRope read_rope(const HuggingFaceConfig& config, const HuggingFaceRopeKeys& keys) {
  HuggingFaceRope rope;
  const std::string theta = key_of(config, keys, "rope_theta", keys.theta);
  // What is in one object is whole there, or an object of objects, one for each kind of layer.
  rope.theta = config.has_rope_parameters() && !config.has(keys.theta)
                   ? config.real(object_of(keys) + "rope_theta")
                   : config.real(theta, keys.default_theta);
  rope.fraction_key = key_of(config, keys, "partial_rotary_factor", keys.fraction);
  rope.fraction = config.real(rope.fraction_key, keys.default_fraction);
  require_agreement(config, keys, theta, rope.theta, "rope_theta", keys.theta);
  require_agreement(
      config, keys, rope.fraction_key, rope.fraction, "partial_rotary_factor", keys.fraction);

  const std::string newer = type_key_in(config, object_of(keys));
  const std::string older = type_key_in(config, kScaling);
  if (!newer.empty() && !older.empty()) {
    config.require(config.text(older, "") == config.text(newer, ""),
                   older,
                   format("\"{}\", as \"{}\" has it", config.text(newer, ""), newer));
  }
  rope.type_key = newer.empty() ? older : newer;
  rope.object = newer.empty() ? kScaling : object_of(keys);
  rope.type = config.text(rope.type_key, "default");
  return rope;
}

}  // namespace tessera
