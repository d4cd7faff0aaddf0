#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/dtype.h"
#include "tessera/models/hugging_face_fields.h"
#include "tessera/models/hugging_face_keys.h"

namespace tessera {

// What a number in a file may make this program list: far more than any model has.
inline constexpr std::int64_t kMaxLayers = 10'000;

// What config.json says beside the model's own sizes.
struct HuggingFaceFacts {
  DType dtype = DType::kF32;
  std::int64_t sequence_length = 0;    // the longest that the model was trained on
  std::vector<std::int32_t> bos = {};  // ids that begin a document: none or one, mostly
  std::vector<std::int32_t> eos = {};  // that end one
};

// A config.json that was read: values by key, those of an object as "rope_scaling.factor". Keys
// that are null are not there. It remembers which keys were asked for: what nobody read and what
// changes a model's result must not be passed over.
class HuggingFaceConfig {
 public:
  // `path` is for messages. Errors: kInvalidData naming file and byte for what is not a JSON object
  // or has a key twice; kInvalidData naming the key, found and expected for the readers below.
  HuggingFaceConfig(std::string_view json, std::string path);

  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Whether the key is there with null: families whose absent key means something else ask.
  bool is_null(std::string_view key) const { return fields_.nulls.contains(key); }

  // Whether the rotary embedding is described in one object, "rope_parameters", as transformers 5
  // write it, and not under each family's own keys.
  bool has_rope_parameters() const { return fields_.has_rope_parameters; }

  // Without a fallback the key must be there.
  std::int64_t size(std::string_view key,
                    std::optional<std::int64_t> fallback = std::nullopt) const;  // positive
  std::int64_t layers(std::string_view key) const;                               // 1 to kMaxLayers
  double real(std::string_view key, std::optional<double> fallback = std::nullopt) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  // Of one id, or a list of them. None where the key is absent.
  std::vector<std::int32_t> tokens(std::string_view key) const;

  // A list of texts, or of numbers. None where the key is absent.
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<double> reals(std::string_view key) const;

  // Refuses a key that says that the model has the part, which its family has not.
  void require_lacks(ModelPart part) const;

  // Refuses the value of a key that this program has no model for.
  void require(bool known, std::string_view key, std::string_view expected) const;

  // That `key`, another name of `other`, is absent or has this value too.
  void require_same(std::string_view key, double value, std::string_view other) const;

  // To be called when all is read that the family reads. Keys that nobody read are refused where
  // other models have them for what a model computes; those that no model here knows are returned,
  // as "\"key\" at byte 9: found 3", even with false, since what is on without them nobody knows
  // (but for a false in an object); those that leave the result alone are passed over, and values
  // that say what models without the key have.
  std::vector<std::string> check_unread() const;

  const std::string& path() const { return path_; }

 private:
  std::int64_t whole(std::string_view key, std::int64_t max) const;

  const HuggingFaceField* find(std::string_view key) const;
  std::string found(std::string_view key) const;
  std::string place(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

  std::string text_;  // of the file
  std::string path_;
  HuggingFaceFields fields_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace tessera
