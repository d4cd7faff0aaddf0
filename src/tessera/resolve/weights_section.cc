#include "tessera/resolve/weights_section.h"

#include <string>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/hugging_face/weights.h"
#include "tessera/models/family.h"
#include "tessera/resolve/require_checkpoint.h"
#include "tessera/resolve/resolve.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Of a family of this program, without adapters.
ModelSection section_of(const fs::path& path, const CheckpointMeta& meta) {
  require_known_model(path, meta);
  const RunConfig config = resolve_stored(meta.config);
  TESSERA_REQUIRE(config.lora.rank == 0,
                  ErrorCode::kInvalidData,
                  "{} has low-rank adapters beside its weights: `tessera checkpoint export` merges "
                  "them; name the directory that it writes in model.weights",
                  path.string());
  return config.model;
}

}  // namespace

std::optional<fs::path> weights_checkpoint(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "config.json", error)) {
    return std::nullopt;
  }
  TESSERA_REQUIRE(fs::exists(path, error),
                  ErrorCode::kInvalidConfig,
                  "model.weights = \"{}\" does not exist, expected a directory in Hugging Face's "
                  "form, a checkpoint, or a run directory",
                  path.string());
  TESSERA_REQUIRE(!fs::is_regular_file(path, error),
                  ErrorCode::kInvalidConfig,
                  "model.weights = \"{}\" is a file, expected a directory in Hugging Face's form "
                  "(that of a .safetensors file, with its config.json), a checkpoint, or a run "
                  "directory",
                  path.string());
  auto found = find_checkpoint(path);
  TESSERA_REQUIRE(found.has_value(),
                  ErrorCode::kInvalidConfig,
                  "model.weights = \"{}\" has neither config.json nor a checkpoint, expected a "
                  "directory in Hugging Face's form, a checkpoint, or a run directory",
                  path.string());
  return found;
}

ModelSection weights_section(const fs::path& path) {
  if (const std::optional<fs::path> checkpoint = weights_checkpoint(path)) {
    return section_of(*checkpoint,
                      CheckpointReader(*checkpoint, {.verify = Verify::kSizes}).meta());
  }
  return read_hugging_face_model(path).section;
}

void require_same_model(const RunConfig& config, const ModelSection& weights) {
  const ModelFamily& family = model_family(config.model.name);
  ModelSection section = weights;
  section.padded_vocab = config.model.padded_vocab;
  if (config.model.grow_vocab && config.model.vocab > weights.vocab) {
    section.vocab = config.model.vocab;
  }
  const bool is_family = weights.name == config.model.name;
  if (is_family && section.padded_vocab < section.vocab) {
    section.padded_vocab.reset();
  }
  const std::string expected = family.describe(config.model).json;
  const std::string found =
      is_family ? family.describe(section).json : format("\"{}\"", weights.name);
  const bool is_smaller = is_family && config.model.vocab > weights.vocab;
  TESSERA_REQUIRE(found == expected,
                  ErrorCode::kInvalidConfig,
                  "model.weights = \"{}\" is another model: found {}, expected {}; without sizes "
                  "and flavor in [model] the run has those of the weights{}",
                  config.model.weights,
                  found,
                  expected,
                  is_smaller ? "; model.grow_vocab = true adds the ids that they do not have" : "");
}

}  // namespace tessera
