#include "tessera/train/resolve.h"

#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/config/config.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

LlamaConfig llama_config(const RunConfig& run) {
  const ModelSection& config = run.model;
  LlamaConfig result;
  if (!config.flavor.empty()) {
    const auto flavor = llama_flavor(config.flavor);
    std::string known;
    for (const std::string_view name : llama_flavors()) {
      known += format("{}\"{}\"", known.empty() ? "" : ", ", name);
    }
    TESSERA_REQUIRE(flavor.has_value(),
                    ErrorCode::kInvalidConfig,
                    "{}: found \"{}\", expected one of {}",
                    placed(run, "model.flavor"),
                    config.flavor,
                    known);
    result = *flavor;
  }
  result.dim = config.dim.value_or(result.dim);
  result.layers = config.layers.value_or(result.layers);
  result.heads = config.heads.value_or(result.heads);
  result.kv_heads = config.kv_heads.value_or(result.kv_heads > 0 ? result.kv_heads : result.heads);
  result.ffn = config.ffn.value_or(result.ffn);
  result.vocab = config.vocab.value_or(result.vocab);
  result.tied = config.tied.value_or(result.tied);
  result.rope_scaling = config.rope_scaling.value_or(result.rope_scaling);
  result.rope_theta = config.rope_theta;
  result.norm_eps = config.norm_eps;
  validate(result);
  return result;
}

}  // namespace

// One branch a family.
ModelDescription resolve_model(const RunConfig& config) {
  if (config.model.name == "llama3") {
    return describe_llama(llama_config(config));
  }
  fail(ErrorCode::kInvalidConfig,
       "{}: found \"{}\", expected \"llama3\"",
       placed(config, "model.name"),
       config.model.name);
}

RunConfig resolve(RunConfig config) {
  if (config.model.name == "llama3") {
    const LlamaConfig sizes = llama_config(config);
    config.model.dim = sizes.dim;
    config.model.layers = sizes.layers;
    config.model.heads = sizes.heads;
    config.model.kv_heads = sizes.kv_heads;
    config.model.ffn = sizes.ffn;
    config.model.vocab = sizes.vocab;
    config.model.tied = sizes.tied;
    config.model.rope_scaling = sizes.rope_scaling;
  }
  validate(config);
  return resolve_run(std::move(config));
}

RunConfig resolve_run(RunConfig config) {
  if (config.run.threads == 0) {
    config.run.threads = usable_cores();
  }
  validate_run(config);
  return config;
}

}  // namespace tessera
