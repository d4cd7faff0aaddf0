#pragma once

#include <string>

#include "tessera/models/hugging_face_config.h"

namespace tessera {

// The keys of a family for its rotary embedding, where they stand beside the others, and what
// transformers take where they are absent.
struct HuggingFaceRopeKeys {
  const char* theta = "rope_theta";
  double default_theta = 10000.0;
  const char* fraction = "partial_rotary_factor";
  double default_fraction = 1.0;
  // Where "rope_parameters" holds an object for each kind of layer: the one to read.
  const char* layers = nullptr;
};

// The rotary embedding of a config.json, in whichever form it is written: keys of the family's own
// and "rope_scaling", or "rope_parameters" for all, as transformers 5 have it.
struct HuggingFaceRope {
  double theta = 0.0;
  double fraction = 0.0;     // of each head that turns
  std::string fraction_key;  // for messages
  std::string type;          // "default", "linear", "llama3" and so on
  std::string type_key;
  std::string object;  // "rope_scaling.": before the keys of the type's own numbers
};

// Errors: kInvalidData naming the key, where two that mean one thing differ.
HuggingFaceRope read_rope(const HuggingFaceConfig& config, const HuggingFaceRopeKeys& keys);

}  // namespace tessera
