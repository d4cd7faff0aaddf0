#pragma once

#include <cstdint>
#include <functional>

#include "tessera/dataset/corpus_input.h"
#include "tessera/infer/evaluator.h"
#include "tessera/infer/trained_model.h"

namespace tessera {

// How far an evaluation is, of sequences or of endings, and the mean loss so far in nats a token.
struct EvalProgress {
  std::int64_t done = 0;
  std::int64_t total = 0;
  double loss = 0;
};

using OnEvalProgress = std::function<void(const EvalProgress& now)>;

// How well a model predicts data.
struct LossResult {
  double nats = 0;             // -log p of all tokens that were scored
  std::int64_t tokens = 0;     // that were scored
  std::int64_t documents = 0;  // BOS and EOS around each, where the tokenizer has them, are tokens
  // Of the documents' texts; of conversations, of what was scored; 0 of tokens without a tokenizer.
  std::int64_t bytes = 0;

  double loss() const { return nats / static_cast<double>(tokens); }  // nats a token

  double perplexity() const;
  double bits_per_byte() const;
};

// The loss over `input` as one stream of tokens, encoded as for training. It is cut into windows of
// the model's sequence length; the first token of a window is the last of the one before, so that
// each token but the very first is scored just once. The last window may be shorter. The masks are
// those of the training (data.document_mask, data.mask_boundary), so that this is validation's loss
// but for the stream's tail, which validation drops. Conversations are packed as for training; what
// the assistant says is scored. Texts that are given as tokens are as long as these decode to.
// input.text.threads and input.text.scratch are as given. Every process of `ranks`, which are those
// of `model`, gets the result; `progress` is called where they lead. Errors: as open_corpus() and
// EvaluatorRanks; kInvalidData for a stream of fewer than two tokens, or an id that the tokenizer
// does not have.
LossResult evaluate_loss(const TrainedModel& model,
                         EvaluatorRanks& ranks,
                         const CorpusInput& input,
                         const OnEvalProgress& progress);

}  // namespace tessera
