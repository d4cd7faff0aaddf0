// An op that Tessera does not have (squared_relu.h), in a model that learns which token follows
// which: one residual layer between embedding and head.

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "examples/squared_relu.h"
#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/config/run_config.h"
#include "tessera/ir/builder.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/models/model.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/train/trainer.h"

namespace {

using tessera::Dim;
using tessera::Value;

const Dim kVocab{.name = "vocab", .bound = 512};
const Dim kEmbed{.name = "embed", .bound = 32};
const Dim kMlp{.name = "mlp", .bound = 128};

tessera::ModelOutputs next_token(tessera::GraphBuilder& builder,
                                 const tessera::ModelInputs& inputs) {
  const auto weight = [&](const char* name, std::vector<Dim> dims, double std) {
    return builder.parameter(
        name, {.dtype = builder.compute_dtype(), .dims = std::move(dims)}, {.std = std});
  };
  const Value x = embedding(weight("tokens.weight", {kVocab, kEmbed}, 1.0), inputs.tokens);
  const Value wide = linear(x, weight("up.weight", {kMlp, kEmbed}, 0.2));
  const Value narrow =
      linear(example::squared_relu(wide), weight("down.weight", {kEmbed, kMlp}, 0.02));
  return {.hidden = add(x, narrow), .head = weight("head.weight", {kVocab, kEmbed}, 0.1)};
}

// The run, from a text and a directory; `overrides` are keys of a run file, --section.key=value.
void train_on(const char* text, const std::string& directory, std::span<char*> overrides) {
  tessera::RunConfig config;
  config.data.files = {text};
  config.data.sequence_length = 64;
  config.run.dir = directory;
  config.tokenizer.path = directory + "/tokens.json";
  config.tokenizer.train_vocab = kVocab.bound;
  config.optimizer.lr = 1e-2;
  for (const char* override : overrides) {
    apply_override(config, override);
  }
  train(config,
        {.model = next_token, .vocab = kVocab.bound, .json = R"({"family": "next token"})"});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: custom_op TEXT RUN_DIRECTORY [--section.key=value...]\n", stderr);
    return 2;
  }
  try {
    const std::span<char*> arguments(argv, static_cast<std::size_t>(argc));
    train_on(arguments[1], arguments[2], arguments.subspan(3));
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return exit_code(error.code());
  }
}
