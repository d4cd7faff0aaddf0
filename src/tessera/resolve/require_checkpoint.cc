#include "tessera/resolve/require_checkpoint.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
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

// As JSON has it, or "none".
std::string family_of(std::string_view model) {
  const nlohmann::json json = parse_json(model, {.name = "the checkpoint's model"});
  return json.is_object() && json.contains("family") ? json["family"].dump() : "none";
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
  const std::string found = family_of(meta.model);
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

void require_known_model(const fs::path& checkpoint,
                         const CheckpointMeta& meta,
                         std::string_view own) {
  if (family_of(own) != family_of(meta.model)) {
    require_known_model(checkpoint, meta);
  }
}

void require_known_run(const fs::path& run_dir) {
  std::optional<fs::path> newest;
  CheckpointMeta meta;
  try {
    newest = find_newest_checkpoint(run_dir / "checkpoints");
    if (newest) {
      meta = CheckpointReader(*newest, {.verify = Verify::kSizes}).meta();
    }
  } catch (const Error&) {
    return;  // whoever opens it says what is wrong with it
  }
  if (newest) {
    require_known_model(*newest, meta);
  }
}

}  // namespace tessera
