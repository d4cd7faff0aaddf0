#include "tessera/train/evaluate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/sequence_source.h"
#include "tessera/train/evaluator.h"
#include "tessera/train/input_rows.h"
#include "tessera/train/run_data.h"

namespace tessera {
namespace {

bool is_text(DataFormat format) {
  return format != DataFormat::kTokens && format != DataFormat::kMegatron;
}

// Of the text that the labels which count stand for.
std::int64_t scored_bytes(std::span<const std::int32_t> labels, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> scored;
  std::ranges::copy_if(
      labels, std::back_inserter(scored), [](std::int32_t label) { return label >= 0; });
  return std::ssize(tokenizer.decode(scored));
}

// Of the documents of a corpus, a stretch at a time.
std::int64_t text_bytes(const Corpus& corpus, const Tokenizer& tokenizer) {
  constexpr std::int64_t kStretch = 1 << 16;  // tokens
  std::int64_t bytes = 0;
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < corpus.num_documents(); ++i) {
    const std::int64_t begin = corpus.document_start(i);
    const std::int64_t end = corpus.document_start(i + 1);
    for (std::int64_t at = begin; at < end; at += kStretch) {
      tokens.resize(static_cast<std::size_t>(std::min(kStretch, end - at)));
      corpus.read(at, tokens);
      bytes += std::ssize(tokenizer.decode(tokens, {.continues = at > begin}));
    }
  }
  return bytes;
}

}  // namespace

double LossResult::perplexity() const {
  return std::exp(loss());
}

double LossResult::bits_per_byte() const {
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}

LossResult evaluate_loss(const TrainedModel& model,
                         const CorpusInput& input,
                         const OnEvalProgress& progress) {
  std::atomic<std::int64_t> bytes = 0;
  const std::shared_ptr<const Corpus> corpus = open_corpus(input, model.tokenizer, &bytes);
  const DataSection& data = model.config.data;
  const SequenceOptions options = {.sequence_length = data.sequence_length,
                                   .document_mask = data.document_mask,
                                   .mask_boundary = data.mask_boundary,
                                   .vocab = model.tokenizer.vocab_size(),
                                   .keep_tail = true,
                                   .padding = model.tokenizer.eos().value_or(0)};
  const SequenceSource source({{.corpus = corpus, .begin = 0, .end = corpus->num_tokens()}},
                              options);
  log_packing(source.packing(), options);
  LossResult result{.documents = source.num_documents()};
  Evaluator evaluator(model, data.sequence_length);
  const std::int64_t total = source.num_sequences();
  for (std::int64_t first = 0; first < total; first += evaluator.num_rows()) {
    for (std::int64_t row = 0; row < evaluator.num_rows(); ++row) {
      if (first + row < total) {
        load_row(evaluator.executor(), source, first + row, row);
        result.tokens += source.num_valid_labels(first + row);
        if (corpus->holds_conversations()) {
          bytes += scored_bytes(input_row(evaluator.executor(), "labels", row), model.tokenizer);
        }
      } else {
        load_empty_row(evaluator.executor(), row);
      }
    }
    const std::vector<double> losses = evaluator.run();
    result.nats = std::accumulate(losses.begin(), losses.end(), result.nats);
    progress({.done = std::min(first + evaluator.num_rows(), total),
              .total = total,
              .loss = result.loss()});
  }
  TESSERA_REQUIRE(result.tokens > 0,
                  ErrorCode::kInvalidData,
                  "{}: no token counts, expected one at least that does not begin a document",
                  input.files.front().string());
  // All ids have been checked by now.
  result.bytes = is_text(input.format) ? bytes.load() : text_bytes(*corpus, model.tokenizer);
  return result;
}

}  // namespace tessera
