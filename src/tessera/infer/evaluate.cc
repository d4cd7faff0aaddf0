#include "tessera/infer/evaluate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/data/sequence_source.h"
#include "tessera/dataset/input_rows.h"
#include "tessera/dataset/run_data.h"

namespace tessera {
namespace {

// Of the text that the labels of a sequence which count stand for.
std::int64_t scored_bytes(const SequenceSource& source,
                          std::int64_t sequence,
                          const Tokenizer& tokenizer) {
  const auto length = static_cast<std::size_t>(source.sequence_length());
  std::vector<std::int32_t> labels(length);
  std::vector<std::int32_t> rest(3 * length);
  const std::span<std::int32_t> others(rest);
  source.read(sequence,
              {.inputs = others.first(length),
               .labels = labels,
               .positions = others.subspan(length, length),
               .documents = others.last(length)});
  std::erase_if(labels, [](std::int32_t label) { return label < 0; });
  return std::ssize(tokenizer.decode(labels));
}

// Of the documents of a corpus that were given as tokens, a stretch at a time.
std::int64_t text_bytes(const Corpus& corpus, const Tokenizer& tokenizer) {
  constexpr std::int64_t kStretch = 1 << 16;  // tokens
  std::int64_t bytes = 0;
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < corpus.num_documents(); ++i) {
    if (corpus.is_text(i)) {
      continue;
    }
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
                         EvaluatorRanks& ranks,
                         const CorpusInput& input,
                         const OnEvalProgress& progress) {
  std::atomic<std::int64_t> bytes = 0;
  const bool needs_tokenizer = find_text(input.files) != nullptr || model.tokenizer.has_value();
  const Tokenizer* const tokenizer = needs_tokenizer ? &model.text_tokenizer() : nullptr;
  const std::shared_ptr<const Corpus> corpus = open_corpus(input, tokenizer, &bytes);
  const DataSection& data = model.config.data;
  const SequenceOptions options = {
      .sequence_length = data.sequence_length,
      .document_mask = data.document_mask,
      .mask_boundary = data.mask_boundary,
      .vocab = tokenizer != nullptr ? tokenizer->id_limit() : model.model.vocab,
      .keep_tail = true,
      .padding = tokenizer != nullptr ? tokenizer->eos().value_or(0) : 0};
  const SequenceSource source({{.corpus = corpus, .begin = 0, .end = corpus->num_tokens()}},
                              options);
  log_packing(source.packing(), options);
  const std::int64_t total = source.num_sequences();
  LossResult result;
  ranks.run(data.sequence_length, [&](Evaluator& evaluator, bool keeps) {
    LossResult found{.documents = source.num_documents()};
    for (std::int64_t first = 0; first < total; first += evaluator.num_sequences()) {
      const std::vector<double> losses = evaluator.losses(
          first, total, [&](std::int64_t sequence) { return read_row(source, sequence); });
      found.nats = std::accumulate(losses.begin(), losses.end(), found.nats);
      const std::int64_t done = first + std::ssize(losses);
      for (std::int64_t i = first; i < done; ++i) {
        found.tokens += source.num_valid_labels(i);
      }
      if (evaluator.leads()) {
        progress({.done = done, .total = total, .loss = found.loss()});
      }
    }
    if (keeps) {
      result = found;
    }
  });
  TESSERA_REQUIRE(result.tokens > 0,
                  ErrorCode::kInvalidData,
                  "{}: no token counts, expected one at least that does not begin a document",
                  input.files.front().path.string());
  // All ids have been checked by now.
  if (corpus->holds_conversations()) {
    for (std::int64_t i = 0; i < total; ++i) {
      result.bytes += scored_bytes(source, i, *tokenizer);
    }
  } else if (tokenizer != nullptr) {
    result.bytes = bytes + text_bytes(*corpus, *tokenizer);
  }
  return result;
}

}  // namespace tessera
