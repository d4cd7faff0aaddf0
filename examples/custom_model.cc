// A model that Tessera does not have, trained on a text file: a GPT with learned positions.

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/ir/builder.h"
#include "tessera/models/model.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/train/trainer.h"

namespace {

using tessera::Dim, tessera::Value;

constexpr const char* kUsage = "custom_model TEXT RUN_DIRECTORY [--section.key=value...]";
const Dim kVocab{.name = "vocab", .bound = 512}, kLength{.name = "length", .bound = 64};
const Dim kEmbed{.name = "embed", .bound = 64}, kMlp{.name = "mlp", .bound = 256};
const Dim kHeads{.name = "heads", .bound = 4}, kHeadDim{.name = "head_dim", .bound = 16};

// The whole model. Gradients, memory and parallelism are Tessera's business.
tessera::ModelOutputs gpt(tessera::GraphBuilder& builder, const tessera::ModelInputs& inputs) {
  const auto weight = [&](const std::string& name,
                          const std::vector<Dim>& dims,
                          const tessera::Initializer& init = {.std = 0.02}) {
    return builder.parameter(name, {.dtype = builder.compute_dtype(), .dims = dims}, init);
  };
  const auto norm = [&](const Value& x, const std::string& name) {
    const Value gain = weight(name + ".gain", {kEmbed}, {.mean = 1.0});
    return layer_norm(x, gain, weight(name + ".bias", {kEmbed}, {}), 1e-5);
  };
  const Value table = weight("tokens.weight", {kVocab, kEmbed});
  const Value places = weight("positions.weight", {kLength, kEmbed});
  const tessera::SequenceIds ids{.positions = inputs.positions, .documents = inputs.documents};
  Value x = add(embedding(table, inputs.tokens), embedding(places, ids.positions));
  for (int i = 0; i < 2; ++i) {
    builder.set_layer(i);
    const std::string layer = "layers." + std::to_string(i) + ".";
    const Value a = norm(x, layer + "norm1");
    const Value q = linear(a, weight(layer + "q", {kHeads, kHeadDim, kEmbed}));
    const Value k = linear(a, weight(layer + "k", {kHeads, kHeadDim, kEmbed}));
    const Value v = linear(a, weight(layer + "v", {kHeads, kHeadDim, kEmbed}));
    const Value o = attention(q, k, v, ids, ids, {.scale = 1.0 / std::sqrt(16.0)});
    x = add(x, linear(o, weight(layer + "o", {kEmbed, kHeads, kHeadDim}), 2));
    const Value b = linear(norm(x, layer + "norm2"), weight(layer + "up", {kMlp, kEmbed}));
    x = add(x, linear(gelu(b), weight(layer + "down", {kEmbed, kMlp})));
  }
  builder.set_layer(-1);
  return {.hidden = norm(x, "norm"), .head = table};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    TESSERA_REQUIRE(argc > 2, tessera::ErrorCode::kInvalidConfig, "usage: {}", kUsage);
    tessera::RunConfig config;
    config.data.files = {argv[1]};
    config.data.sequence_length = kLength.bound;
    config.run.dir = argv[2];
    config.tokenizer = {.path = config.run.dir + "/tokens.json", .train_vocab = kVocab.bound};
    config.optimizer.lr = 3e-3;
    for (int i = 3; i < argc; ++i) {
      apply_override(config, argv[i]);
    }
    train(config, {.model = gpt, .vocab = kVocab.bound, .json = R"({"family": "small gpt"})"});
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return exit_code(error.code());
  }
}
