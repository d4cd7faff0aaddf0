#include "tessera/weights/import_weights.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/direct_file.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/config.h"
#include "tessera/dataset/run_data.h"
#include "tessera/dataset/text_encoder.h"
#include "tessera/hugging_face/weights.h"
#include "tessera/plan/graphs.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/stored_tokenizer.h"
#include "tessera/state/training_state.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/weights/companions.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The run that such a checkpoint is of: none that trained, but one that can go on to be exported or
// sampled.
RunConfig run_of(const HuggingFaceModel& model, DType dtype, const ImportOptions& options) {
  RunConfig config;
  config.model = model.section;
  config.run.dir = options.checkpoint.string();
  config.tokenizer.path = tokenizer_copy(options.checkpoint).string();
  config.data.files = {options.source.string()};
  config.data.sequence_length = model.facts.sequence_length;
  config.train.dtype = dtype;
  return resolve(std::move(config));
}

// Points the tensors at their bytes: in the files, or in the memory that is returned.
PageBuffer make_missing(const HuggingFaceWeights& weights,
                        const std::vector<ParameterInit>& parameters,
                        std::vector<CheckpointTensor>& tensors) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].data = weights.view(tensors[i].name, tensors[i].dtype);
    if (tensors[i].data.empty()) {
      size += static_cast<std::size_t>(parameters[i].type.num_bytes());
    } else {
      tensors[i].source = weights.source(tensors[i].name);
    }
  }
  PageBuffer memory(size);
  std::vector<WeightRead> reads;
  std::size_t at = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CheckpointTensor& tensor = tensors[i];
    if (tensor.data.empty()) {
      const auto bytes =
          memory.bytes().subspan(at, static_cast<std::size_t>(parameters[i].type.num_bytes()));
      at += bytes.size();
      reads.push_back({.parameter = tensor.name, .dtype = tensor.dtype, .first = 0, .out = bytes});
      tensor.data = bytes;
    }
  }
  weights.load(reads);
  return memory;
}

void require_ids(const std::string& what,
                 const std::vector<std::int32_t>& configured,
                 std::int64_t vocab) {
  for (const std::int32_t id : configured) {
    TESSERA_REQUIRE(
        id < vocab, ErrorCode::kInvalidData, "{} is {}, and the model has {} ids", what, id, vocab);
  }
}

}  // namespace

void import_weights(const ImportOptions& options) {
  std::error_code error;
  TESSERA_REQUIRE(!fs::exists(options.checkpoint, error),
                  ErrorCode::kInvalidConfig,
                  "{} exists: choose another directory for the checkpoint",
                  options.checkpoint.string());
  const HuggingFaceModel model = read_hugging_face_model(options.source);
  const Companions companions(options.source);
  const HuggingFaceWeights weights(options.source, model.section);
  RunConfig config = run_of(model, weights.dtype(), options);
  const ModelDescription description = resolve_model(config);
  const std::optional<fs::path> tokenizer = find_tokenizer(options.source);
  if (tokenizer) {
    // What could not be used with the weights is refused before they are written.
    const Tokenizer loaded = load_tokenizer(*tokenizer, description.vocab);
    const std::string place = (options.source / "config.json").string();
    require_ids(place + ": bos_token_id", model.facts.bos, description.vocab);
    require_ids(place + ": eos_token_id", model.facts.eos, description.vocab);
    log_marks(loaded);
    config = with_marks_of(loaded, std::move(config));
  }
  const std::vector<ParameterInit> parameters = parameter_inits(
      training_graph(description, 1, config.data.sequence_length, config.train.dtype));

  std::vector<CheckpointTensor> tensors;
  for (CheckpointTensor& tensor : model_tensors(parameters, config.optimizer.moments)) {
    if (is_of_model(tensor.role)) {
      tensors.push_back(std::move(tensor));
    }
  }
  const PageBuffer made = make_missing(weights, parameters, tensors);

  CheckpointMeta meta{.seed = static_cast<std::uint64_t>(config.run.seed),
                      .model = description.json,
                      .config = to_toml(config)};
  if (tokenizer) {
    meta.tokenizer = tokenizer_checksum(*tokenizer);
  } else {
    log_warning(format("the weights come without a tokenizer: {} has none of {}",
                       options.source.string(),
                       kTokenizerNames));
  }
  warn_of_oddities(options.source, model);
  save_checkpoint(options.checkpoint, meta, tensors);
  if (tokenizer) {
    write_file_atomic(tokenizer_copy(options.checkpoint), read_tokenizer_file(*tokenizer));
  }
  companions.keep(options.checkpoint);
}

}  // namespace tessera
