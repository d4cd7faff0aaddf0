#include "tessera/train/evaluate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/data/sequence_source.h"
#include "tessera/data/token_stream.h"
#include "tessera/train/evaluator.h"
#include "tessera/train/input_rows.h"
#include "tessera/train/text_encoder.h"

namespace tessera {

double LossResult::perplexity() const {
  return std::exp(loss());
}

double LossResult::bits_per_byte() const {
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}

LossResult evaluate_loss(const TrainedModel& model,
                         const std::vector<std::filesystem::path>& files,
                         const TextOptions& text,
                         const OnEvalProgress& progress) {
  std::atomic<std::int64_t> bytes = 0;
  TextEncoder encoder = text_encoder(model.tokenizer);
  encoder.encode = [&bytes, encode = std::move(encoder.encode)](std::string_view part,
                                                                const TokenSink& sink) {
    bytes += static_cast<std::int64_t>(part.size());
    encode(part, sink);
  };
  const DataSection& data = model.config.data;
  const SequenceSource source(tokenize_text_files(files, encoder, text),
                              {.sequence_length = data.sequence_length,
                               .document_mask = data.document_mask,
                               .mask_boundary = data.mask_boundary,
                               .vocab = model.tokenizer.vocab_size(),
                               .keep_tail = true});
  LossResult result{.documents = source.num_documents(), .bytes = bytes};
  Evaluator evaluator(model, data.sequence_length);
  const std::int64_t total = source.num_sequences();
  for (std::int64_t first = 0; first < total; first += evaluator.num_rows()) {
    for (std::int64_t row = 0; row < evaluator.num_rows(); ++row) {
      if (first + row < total) {
        load_row(evaluator.executor(), source, first + row, row);
        result.tokens += source.num_valid_labels(first + row);
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
                  files.front().string());
  return result;
}

}  // namespace tessera
