#include "tessera/train/trained_model.h"

#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/train/resolve.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_data.h"

namespace tessera {

TrainedModel open_trained_model(const std::filesystem::path& path) {
  const std::filesystem::path found = require_checkpoint(path);
  auto weights =
      std::make_unique<const CheckpointReader>(found, ReaderOptions{.verify = Verify::kOnLoad});
  require_known_model(found, weights->meta());
  const bool is_of_gpu =
      parse_run_config(weights->meta().config, "the checkpoint's config").run.device == "cuda";
  RunConfig config = resolve_stored(weights->meta().config);
  ModelDescription model = resolve_model(config);
  const std::filesystem::path tokenizer = checkpoint_tokenizer(found, config.tokenizer.path);
  std::error_code error;
  TESSERA_REQUIRE(
      std::filesystem::exists(tokenizer, error),
      ErrorCode::kInvalidData,
      "{} has no tokenizer beside it, and the one that its run named, {}, is not there: "
      "copy it to {}",
      found.string(),
      tokenizer.string(),
      tokenizer_copy(found).string());
  require_tokenizer(tokenizer, found, weights->meta());
  return {.checkpoint = found,
          .weights = std::move(weights),
          .config = std::move(config),
          .device = is_of_gpu ? "auto" : "cpu",
          .model = model,
          .tokenizer = load_tokenizer(tokenizer, model.vocab)};
}

}  // namespace tessera
