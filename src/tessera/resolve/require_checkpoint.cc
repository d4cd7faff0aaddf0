#include "tessera/resolve/require_checkpoint.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/family.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// What `tessera checkpoint import` takes, by the names of its files.
bool has_hugging_face_weights(const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(directory / "config.json", error)) {
    return false;
  }
  fs::directory_iterator entries(directory, error);
  return !error && std::any_of(fs::begin(entries), fs::end(entries), [](const auto& entry) {
    return entry.path().extension() == ".safetensors";
  });
}

}  // namespace

fs::path require_checkpoint(const fs::path& path) {
  auto found = find_checkpoint(path);
  TESSERA_REQUIRE(found || fs::exists(path),
                  ErrorCode::kInvalidConfig,
                  "{} does not exist, expected a run directory or a checkpoint",
                  path.string());
  TESSERA_REQUIRE(found || !has_hugging_face_weights(path),
                  ErrorCode::kInvalidConfig,
                  "{0} holds Hugging Face weights, no checkpoint: make one of them first, with "
                  "`tessera checkpoint import {0} -o CHECKPOINT`",
                  path.string());
  TESSERA_REQUIRE(found.has_value(),
                  ErrorCode::kInvalidConfig,
                  "{} has no checkpoint: train first, or name one",
                  path.string());
  return *std::move(found);
}

void require_known_model(const fs::path& checkpoint, const CheckpointMeta& meta) {
  const nlohmann::json model = parse_json(meta.model, {.name = "the checkpoint's model"});
  const std::string found =
      model.is_object() && model.contains("family") ? model["family"].dump() : "none";
  std::string known;
  for (const ModelFamily& family : model_families()) {
    if (found == format("\"{}\"", family.described)) {
      return;
    }
    known += format("{}\"{}\"", known.empty() ? "" : ", ", family.name);
  }
  fail(ErrorCode::kInvalidConfig,
       "{} is of a model of its own, family {}: only the program that built it can compute it; "
       "this one knows the families {}",
       checkpoint.string(),
       found,
       known);
}

}  // namespace tessera
