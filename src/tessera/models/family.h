#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/hugging_face_config.h"
#include "tessera/models/hugging_face_weight.h"
#include "tessera/models/model.h"
#include "tessera/models/model_section.h"

namespace tessera {

// A family of models as the rest of the program knows it: what [model] means to it, and how Hugging
// Face's transformers name and store its weights. The list is in family.cc.
struct ModelFamily {
  std::string_view name;                  // model.name
  std::string_view described;             // the "family" of describe().json
  std::vector<std::string_view> flavors;  // published sizes, smallest first

  // The section with everything that follows from its flavor written out.
  // Errors: kInvalidConfig naming the key.
  ModelSection (*resolve)(const ModelSection& section);

  // The model of a resolved section.
  ModelDescription (*describe)(const ModelSection& section);

  // "model_type" of the config.json that it reads; the first is what it writes.
  std::vector<std::string_view> model_types;

  // What transformers put before the names of all weights but the head's; files may lack it.
  std::string_view weight_prefix;

  // The sizes that a config.json says, as a resolved section. Errors: kInvalidData naming file and
  // key for what the family has no form of.
  ModelSection (*from_hugging_face)(const HuggingFaceConfig& config);

  // The text of config.json for a resolved section.
  std::string (*hugging_face_config)(const ModelSection& section, const HuggingFaceFacts& facts);

  // All weights of a resolved section, in the order in which transformers list them. A tied head is
  // left out.
  std::vector<HuggingFaceWeight> (*hugging_face_weights)(const ModelSection& section);

  // Whether files may hold a tensor of this name that is no weight: a mask, a frequency, the copy
  // of a tied head.
  bool (*is_extra)(const ModelSection& section, std::string_view name);
};

std::span<const ModelFamily> model_families();

// Errors: kInvalidConfig naming the ones that there are.
const ModelFamily& model_family(std::string_view name);

// The family that reads a config.json of this "model_type". Errors: kInvalidData naming file, found
// and expected.
const ModelFamily& hugging_face_family(const HuggingFaceConfig& config);

// What a config.json says: a resolved section, whose `name` is the family's.
struct HuggingFaceModel {
  ModelSection section;
  HuggingFaceFacts facts;
  std::vector<std::string> unknown_keys = {};  // that nothing here knows, with their values
};

// Errors: kInvalidData naming file, key, found and expected.
HuggingFaceModel hugging_face_model(const HuggingFaceConfig& config);

// Whether a parameter has a row for each id: the embedding's table, the head. All families name
// them so.
bool is_vocab_table(std::string_view parameter);

// `section` with what it leaves out taken from `defaults`.
ModelSection completed(ModelSection section, const ModelSection& defaults);

// The dims that every family has: positive, with heads that divide dim. Errors: kInvalidConfig
// naming the key.
void require_dims(const ModelSection& section);

// Errors: kInvalidConfig where `is_set`: `family` has no use for the key.
void refuse_key(bool is_set, std::string_view family, std::string_view key);

// That the embedding has a row for each id. Errors: kInvalidConfig.
void require_rows(std::int64_t rows, std::int64_t vocab);

}  // namespace tessera
