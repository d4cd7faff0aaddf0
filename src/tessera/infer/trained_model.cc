#include "tessera/infer/trained_model.h"

#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/dataset/run_data.h"
#include "tessera/resolve/require_checkpoint.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/stored_tokenizer.h"

namespace tessera {

const Tokenizer& TrainedModel::text_tokenizer() const {
  TESSERA_REQUIRE(tokenizer.has_value(),
                  ErrorCode::kInvalidConfig,
                  "{} was trained on tokens without a tokenizer, so that it neither reads nor "
                  "writes text: copy the tokenizer that its data were made with to {}",
                  checkpoint.string(),
                  tokenizer_copy(checkpoint).string());
  return *tokenizer;
}

namespace {

TrainedModel open_checkpoint(const std::filesystem::path& found) {
  auto weights =
      std::make_unique<const CheckpointReader>(found, ReaderOptions{.verify = Verify::kOnLoad});
  require_known_model(found, weights->meta());
  const bool is_of_gpu =
      parse_run_config(weights->meta().config, "the checkpoint's config").run.device == "cuda";
  RunConfig config = resolve_stored(weights->meta().config);
  ModelDescription model = resolve_model(config);
  const std::filesystem::path tokenizer = checkpoint_tokenizer(found, config.tokenizer.path);
  std::error_code error;
  const bool exists = std::filesystem::exists(tokenizer, error);
  TESSERA_REQUIRE(
      exists || config.tokenizer.path.empty(),
      ErrorCode::kInvalidData,
      "{} has no tokenizer beside it, and the one that its run named, {}, is not there: "
      "copy it to {}",
      found.string(),
      tokenizer.string(),
      tokenizer_copy(found).string());
  std::optional<Tokenizer> loaded;
  if (exists) {
    require_tokenizer(tokenizer, found, weights->meta());
    loaded = with_configured_marks(load_tokenizer(tokenizer, model.vocab), config);
  }
  return {.checkpoint = found,
          .weights = std::move(weights),
          .config = std::move(config),
          .device = is_of_gpu ? "auto" : "cpu",
          .model = model,
          .tokenizer = std::move(loaded)};
}

}  // namespace

TrainedModel open_trained_model(const std::filesystem::path& path) {
  return with_checkpoint(path, open_checkpoint);
}

}  // namespace tessera
