#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/questions.h"
#include "tessera/infer/evaluate.h"
#include "tessera/infer/evaluator.h"
#include "tessera/infer/trained_model.h"

namespace tessera {

// How likely the model finds each ending of a question.
struct Scores {
  std::vector<double> log_probs;         // sum over the ending's tokens of log p, in nats
  std::vector<std::int64_t> tokens;      // of each ending
  std::vector<std::int64_t> characters;  // of each ending's text: code points
  std::vector<std::int64_t> bytes;       // of the same

  // The likeliest ending; the likeliest a character, as lm-evaluation-harness has acc_norm, and the
  // likeliest a byte; the first of equals.
  std::size_t best() const;
  std::size_t best_by_character() const;
  std::size_t best_by_byte() const;
};

// A question's endings as the model is asked: what stands before texts (TextMarks; where there is
// no context, at least BOS or EOS), the context, a space where neither text has one there, the
// ending. Its own tokens are those behind as many as the context alone has (trailing spaces of a
// context belong to the ending).
struct EncodedEnding {
  std::vector<std::int32_t> tokens;  // context and ending
  std::size_t own = 0;               // the last so many are the ending's
};

EncodedEnding encode_ending(const Tokenizer& tokenizer,
                            std::string_view context,
                            std::string_view ending);

struct ChoicesResult {
  std::vector<Scores> scores;   // by question
  std::int64_t num_labels = 0;  // questions that have one
  std::int64_t right = 0;       // of these, where best() is the label
  std::int64_t right_by_character = 0;
  std::int64_t right_by_byte = 0;
  std::int64_t num_cut = 0;  // endings whose context lost its front to the sequence length
};

// Scores all of them, on `ranks`, which are those of `model`: every process gets the result, and
// `progress` is called where they lead. Errors: those of EvaluatorRanks; kInvalidData naming
// FILE:LINE of an ending without a token of its own, without a token before it, or longer than the
// model's sequences.
ChoicesResult score_choices(const TrainedModel& model,
                            EvaluatorRanks& ranks,
                            const std::filesystem::path& file,
                            const std::vector<Question>& questions,
                            const OnEvalProgress& progress);

// A line of JSON for a question: line, label where it has one, log_probs, tokens, characters,
// bytes, best, best_normalized (by characters) and best_by_bytes. Without its end.
std::string to_json(const Question& question, const Scores& scores);

}  // namespace tessera
