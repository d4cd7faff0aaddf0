#include "tessera/train/trained_model.h"

#include <utility>

#include "tessera/train/resolve.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_data.h"

namespace tessera {

TrainedModel open_trained_model(const std::filesystem::path& path) {
  const std::filesystem::path found = require_checkpoint(path);
  auto weights =
      std::make_unique<const CheckpointReader>(found, ReaderOptions{.verify = Verify::kOnLoad});
  RunConfig config = resolve_stored(weights->meta().config);
  ModelDescription model = resolve_model(config);
  const std::filesystem::path tokenizer = checkpoint_tokenizer(found, config.tokenizer.path);
  require_tokenizer(tokenizer, found, weights->meta());
  return {.checkpoint = found,
          .weights = std::move(weights),
          .config = std::move(config),
          .model = model,
          .tokenizer = load_tokenizer(tokenizer, model.vocab)};
}

}  // namespace tessera
