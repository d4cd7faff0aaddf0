#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/models/model_section.h"

namespace tessera {

// What values a size may have.
enum class SizeRange : std::uint8_t {
  kSize,      // an integer from 1
  kLayers,    // an integer from 1 to kMaxLayers
  kFlag,      // true or false
  kPositive,  // a number above 0
  kFromZero,  // a number from 0
  kRatio,     // a number from 0 to 1
  kList       // of numbers above 0
};

// A size of a model: the one row from which the run file's key, its documentation, the JSON of
// checkpoints and plans, and what families refuse follow.
struct ModelKey {
  using Member = std::variant<std::optional<std::int64_t> ModelSection::*,
                              std::optional<bool> ModelSection::*,
                              std::optional<double> ModelSection::*,
                              std::optional<std::vector<double>> ModelSection::*>;

  std::string_view name;  // after "model."
  Member member;
  SizeRange range = SizeRange::kSize;
  std::string_view doc;  // for docs/config.md
};

// In the order of ModelSection.
std::span<const ModelKey> model_keys();

// Errors: kInternal where there is none.
const ModelKey& model_key(std::string_view name);

bool is_set(const ModelSection& section, const ModelKey& key);

}  // namespace tessera
