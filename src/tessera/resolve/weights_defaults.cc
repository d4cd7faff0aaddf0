#include "tessera/resolve/weights_defaults.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/dataset/corpus_input.h"
#include "tessera/models/family.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/start_checks.h"
#include "tessera/resolve/stored_tokenizer.h"
#include "tessera/resolve/weights_section.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/tokenizer_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_file_there(const fs::path& path) {
  std::error_code error;
  return fs::status(path, error).type() != fs::file_type::not_found;
}

// What is wrong with weights that are needed is said where they are opened.
bool are_weights_there(const fs::path& path) {
  try {
    weights_checkpoint(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A file of the data that only a tokenizer can read; "" where there is none.
std::string text_of_data(const RunConfig& config) {
  std::vector<DataSource> sources = data_sources(config.data);
  if (!config.data.validation_files.empty()) {
    sources.push_back({.files = config.data.validation_files, .format = config.data.format});
  }
  for (const DataSource& source : sources) {
    const std::vector<fs::path> names(source.files.begin(), source.files.end());
    const std::vector<InputFile> files =
        input_files(names, source.format.value_or(DataFormat::kAuto)).files;
    if (const InputFile* const text = find_text(files)) {
      return text->path.string();
    }
  }
  return config.sample.prompt.empty() ? "" : "sample.prompt";
}

// Weights that the run needed for its first start alone.
RunConfig with_model_of(const fs::path& checkpoint, RunConfig config, bool says) {
  const CheckpointMeta meta = CheckpointReader(checkpoint, {.verify = Verify::kSizes}).meta();
  const RunConfig stored = resolve_stored(meta.config);
  if (says) {
    log_warning(
        format("model.weights = \"{}\" is not there any more; the run goes on from {} without it",
               config.model.weights,
               checkpoint.string()));
  }
  if (!config.origins.places.contains("model.name")) {
    config.model.name = stored.model.name;
  }
  if (config.model.flavor.empty()) {
    config.model = completed(config.model, stored.model);
  }
  if (config.tokenizer.path.empty()) {
    config.tokenizer.path = stored.tokenizer.path;
  }
  return config;
}

bool have_same_token(const Tokenizer& first, const Tokenizer& second, std::int32_t id) {
  return std::ranges::binary_search(first.holes(), id) ||
         std::ranges::binary_search(second.holes(), id) ||
         first.token_bytes(id) == second.token_bytes(id) ||
         first.spelling(id) == second.spelling(id);
}

// Rows of the weights that would stand for other tokens than they were trained for.
void warn_of_other_tokens(const fs::path& theirs, const RunConfig& config) {
  const fs::path ours = config.tokenizer.path;
  if (read_tokenizer_file(ours) == read_tokenizer_file(theirs)) {
    return;
  }
  const Tokenizer own = Tokenizer::load(ours);
  const Tokenizer weights = Tokenizer::load(theirs);
  const std::int32_t shared = std::min(own.vocab_size(), weights.vocab_size());
  std::int32_t first = -1;
  std::int64_t count = 0;
  for (std::int32_t id = 0; id < shared; ++id) {
    if (!have_same_token(own, weights, id)) {
      first = count == 0 ? id : first;
      ++count;
    }
  }
  if (count == 0) {
    return;
  }
  log_warning(
      format("the tokenizer {} is not that of model.weights, {}: {} of {} ids are other tokens "
             "(the first is {}: \"{}\", there \"{}\"), for which the weights know nothing",
             ours.string(),
             theirs.string(),
             format_grouped(count),
             format_grouped(shared),
             first,
             own.spelling(first),
             weights.spelling(first)));
}

void require_no_training(const RunConfig& config, const std::optional<fs::path>& theirs) {
  TESSERA_REQUIRE(
      !theirs || config.tokenizer.train_vocab == 0,
      ErrorCode::kInvalidConfig,
      "{}: found {}, and the weights have a tokenizer of their own, {}: a new one would "
      "give their ids other tokens; leave it out",
      placed(config, "tokenizer.train_vocab"),
      config.tokenizer.train_vocab,
      theirs ? theirs->string() : "");
}

RunConfig with_tokenizer(RunConfig config, ConfigUse use, bool says) {
  const std::optional<fs::path> theirs = weights_tokenizer(config.model.weights);
  if (!config.tokenizer.path.empty()) {
    const bool exists = is_file_there(find_own_tokenizer(config));
    if (!exists) {
      require_no_training(config, theirs);
    } else if (theirs && says && is_file_there(config.tokenizer.path)) {
      warn_of_other_tokens(*theirs, config);
    }
    return config;
  }
  require_no_training(config, theirs);
  if (use == ConfigUse::kPlan) {  // whose data need not be there
    config.tokenizer.path = theirs ? theirs->string() : "";
    return config;
  }
  const std::string text = text_of_data(config);
  if (text.empty()) {
    return config;
  }
  TESSERA_REQUIRE(theirs.has_value(),
                  ErrorCode::kInvalidConfig,
                  "{} needs a tokenizer, and model.weights = \"{}\" has none beside it: name the "
                  "one that the weights were trained with in tokenizer.path",
                  text,
                  config.model.weights);
  if (says) {
    log_info(format("tokenizer: {}, that of model.weights", theirs->string()));
  }
  config.tokenizer.path = theirs->string();
  return config;
}

}  // namespace

std::optional<fs::path> weights_tokenizer(const fs::path& weights) {
  const std::optional<fs::path> checkpoint = weights_checkpoint(weights);
  if (!checkpoint) {
    return find_tokenizer(weights);
  }
  fs::path own = checkpoint_tokenizer(*checkpoint, {});
  return own.empty() ? std::nullopt : std::optional(std::move(own));
}

RunConfig with_weights_defaults(RunConfig config, ConfigUse use, bool says) {
  if (config.model.weights.empty()) {
    return config;
  }
  if (!are_weights_there(config.model.weights)) {
    const std::optional<fs::path> start = start_checkpoint(config);
    return start ? with_model_of(*start, std::move(config), says) : config;
  }
  if (!config.origins.places.contains("model.name")) {
    config.model.name = weights_section(config.model.weights).name;
  }
  return with_tokenizer(std::move(config), use, says);
}

}  // namespace tessera
