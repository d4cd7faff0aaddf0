#include "tessera/train/generate.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/config.h"
#include "tessera/passes/pipeline.h"
#include "tessera/runtime/executor.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/utf8.h"
#include "tessera/train/resolve.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_data.h"
#include "tessera/train/sampler.h"
#include "tessera/train/step_program.h"
#include "tessera/train/training_state.h"

namespace tessera {
namespace {

// A model with its weights that gives the logits after a sequence of tokens.
class Generator {
 public:
  Generator(const RunConfig& config, const ModelDescription& model, const CheckpointReader& weights)
      : length_(config.data.sequence_length),
        backend_(make_cpu_backend(static_cast<int>(config.run.threads))),
        graph_(generation_graph(model, length_, config.train.dtype)),
        program_(compile_forward(
            graph_,
            {.workspace_bytes =
                 [this](const Op& op, std::span<const View> in, std::span<const View> out) {
                   return backend_->workspace_bytes(op, in, out);
                 }})),
        executor_(program_, *backend_) {
    load_state(executor_, parameter_inits(graph_), weights);
  }

  std::int64_t length() const { return length_; }

  // `tokens` has 1 to length() entries. Later positions hold zeros, which causal attention hides.
  std::span<const float> logits(std::span<const std::int32_t> tokens) {
    std::copy(tokens.begin(), tokens.end(), input("tokens").begin());
    const std::span<std::int32_t> positions = input("positions");
    for (std::size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<std::int32_t>(i);
    }
    input("last")[0] = static_cast<std::int32_t>(tokens.size()) - 1;
    executor_.run_step();
    const auto bytes = executor_.bytes(find_binding(program_.outputs, "logits"));
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

 private:
  std::span<std::int32_t> input(std::string_view name) {
    const auto bytes = executor_.bytes(find_binding(program_.inputs, name));
    return {reinterpret_cast<std::int32_t*>(bytes.data()), bytes.size() / sizeof(std::int32_t)};
  }

  std::int64_t length_;
  std::unique_ptr<Backend> backend_;
  Graph graph_;
  Program program_;
  Executor executor_;
};

}  // namespace

std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer,
                                        const std::string& prompt,
                                        std::int64_t sequence_length) {
  std::vector<std::int32_t> tokens;
  if (const auto bos = tokenizer.bos()) {
    tokens.push_back(*bos);
  }
  tokenizer.encode(prompt, tokens);
  TESSERA_REQUIRE(!tokens.empty(),
                  ErrorCode::kInvalidConfig,
                  "the prompt is empty and the tokenizer has no begin-of-text token");
  TESSERA_REQUIRE(static_cast<std::int64_t>(tokens.size()) < sequence_length,
                  ErrorCode::kInvalidConfig,
                  "the prompt has {} tokens, expected less than the {} of the model's sequences "
                  "(data.sequence_length)",
                  tokens.size(),
                  sequence_length);
  return tokens;
}

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit) {
  const std::filesystem::path path = require_checkpoint(options.checkpoint);
  const CheckpointReader checkpoint(path, {.verify = Verify::kOnLoad});
  const RunConfig config =
      resolve(parse_run_config(checkpoint.meta().config, "the checkpoint's config"));
  const ModelDescription model = resolve_model(config);
  const std::filesystem::path tokenizer_path = checkpoint_tokenizer(path, config.tokenizer.path);
  require_tokenizer(tokenizer_path, path, checkpoint.meta());
  const Tokenizer tokenizer = load_tokenizer(tokenizer_path, model.vocab);
  std::vector<std::int32_t> tokens =
      prompt_tokens(tokenizer, options.prompt, config.data.sequence_length);
  Generator generator(config, model, checkpoint);
  Utf8Stream stream;
  emit(options.prompt);
  const std::uint64_t key = random_key(options.seed, "generate");
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    if (static_cast<std::int64_t>(tokens.size()) >= generator.length()) {
      break;
    }
    const std::int32_t next = sample_token(
        generator.logits(tokens),
        {.temperature = options.temperature, .top_k = options.top_k, .top_p = options.top_p},
        uniform(key, static_cast<std::uint64_t>(i)));
    if (next == tokenizer.eos()) {
      break;
    }
    tokens.push_back(next);
    emit(stream.push(tokenizer.decode(std::span(&next, 1), {.continues = true})));
  }
  emit(stream.flush());
}

}  // namespace tessera
