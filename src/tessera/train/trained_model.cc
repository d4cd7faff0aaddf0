#include "tessera/train/trained_model.h"

#include <utility>

#include "tessera/config/config.h"
#include "tessera/train/resolve.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_data.h"

namespace tessera {

TrainedModel open_trained_model(const std::filesystem::path& path) {
  const std::filesystem::path found = require_checkpoint(path);
  auto weights =
      std::make_unique<const CheckpointReader>(found, ReaderOptions{.verify = Verify::kOnLoad});
  const bool is_of_gpu =
      parse_run_config(weights->meta().config, "the checkpoint's config").run.device == "cuda";
  RunConfig config = resolve_stored(weights->meta().config);
  ModelDescription model = resolve_model(config);
  const std::filesystem::path tokenizer = checkpoint_tokenizer(found, config.tokenizer.path);
  require_tokenizer(tokenizer, found, weights->meta());
  return {.checkpoint = found,
          .weights = std::move(weights),
          .config = std::move(config),
          .device = is_of_gpu ? "auto" : "cpu",
          .model = model,
          .tokenizer = load_tokenizer(tokenizer, model.vocab)};
}

}  // namespace tessera
