#include "tessera/infer/choices.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/data/sequence_source.h"
#include "tessera/dataset/input_rows.h"
#include "tessera/program/step_names.h"

namespace tessera {
namespace {

// Programs are as long as the longest ending needs, in steps: their number of rows is the same for
// files that are alike.
constexpr std::int64_t kLengthStep = 32;

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// An ending of a question, ready to be scored.
struct Item {
  std::size_t question = 0;
  std::size_t ending = 0;
  EncodedEnding encoded;
};

std::vector<Item> encode_all(const TrainedModel& model,
                             const std::filesystem::path& file,
                             const std::vector<Question>& questions) {
  const std::int64_t longest = model.config.data.sequence_length;
  std::vector<Item> items;
  for (std::size_t q = 0; q < questions.size(); ++q) {
    const Question& question = questions[q];
    for (std::size_t e = 0; e < question.endings.size(); ++e) {
      EncodedEnding encoded = with_context(
          [&] { return format("{}:{}: endings[{}]", file.string(), question.line, e); },
          [&] {
            return encode_ending(model.text_tokenizer(), question.context, question.endings[e]);
          });
      const auto own = static_cast<std::int64_t>(encoded.own);
      TESSERA_REQUIRE(
          own > 0 && encoded.tokens.size() > encoded.own && own <= longest,
          ErrorCode::kInvalidData,
          "{}:{}: endings[{}]: found {} tokens behind {}, expected 1 to {} (the model's "
          "sequence length) behind one at least",
          file.string(),
          question.line,
          e,
          own,
          encoded.tokens.size() - encoded.own,
          longest);
      items.push_back({.question = q, .ending = e, .encoded = std::move(encoded)});
    }
  }
  return items;
}

// The last token is nothing's input.
std::int64_t num_inputs(const Item& item) {
  return static_cast<std::int64_t>(item.encoded.tokens.size()) - 1;
}

// All tokens but the last, padded on the right to `length`; labels are the ending's tokens. Of a
// context that is too long the front is cut off.
SequenceRow row_of(const Item& item, std::int64_t length) {
  SequenceRow row = empty_row(length);
  const std::span<const std::int32_t> tokens(item.encoded.tokens);
  const std::size_t count = std::min(row.tokens.size(), tokens.size() - 1);
  std::ranges::copy(tokens.last(count + 1).first(count), row.tokens.begin());
  const std::size_t own = item.encoded.own;
  std::ranges::copy(tokens.last(own),
                    row.labels.begin() + static_cast<std::ptrdiff_t>(count - own));
  return row;
}

// The nats of every item, on all ranks.
std::vector<double> score_items(Evaluator& evaluator,
                                const std::vector<Item>& items,
                                std::int64_t length,
                                const OnEvalProgress& progress) {
  const auto total = static_cast<std::int64_t>(items.size());
  std::vector<double> nats;
  double sum = 0;
  std::int64_t tokens = 0;
  while (nats.size() < items.size()) {
    const auto read = [&](std::int64_t i) {
      return row_of(items[static_cast<std::size_t>(i)], length);
    };
    for (const double loss : evaluator.losses(std::ssize(nats), total, read)) {
      tokens += static_cast<std::int64_t>(items[nats.size()].encoded.own);
      sum += loss;
      nats.push_back(loss);
    }
    if (evaluator.leads()) {
      progress(
          {.done = std::ssize(nats), .total = total, .loss = sum / static_cast<double>(tokens)});
    }
  }
  return nats;
}

// The first of the likeliest, each divided by its length.
std::size_t best_of(std::vector<double> log_probs, std::span<const std::int64_t> lengths) {
  for (std::size_t i = 0; i < log_probs.size(); ++i) {
    log_probs[i] /= static_cast<double>(lengths[i]);
  }
  return static_cast<std::size_t>(std::ranges::max_element(log_probs) - log_probs.begin());
}

// Of valid UTF-8: bytes that do not go on a character.
std::int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

}  // namespace

std::size_t Scores::best() const {
  return static_cast<std::size_t>(std::ranges::max_element(log_probs) - log_probs.begin());
}

std::size_t Scores::best_by_character() const {
  return best_of(log_probs, characters);
}

std::size_t Scores::best_by_byte() const {
  return best_of(log_probs, bytes);
}

EncodedEnding encode_ending(const Tokenizer& tokenizer,
                            std::string_view context,
                            std::string_view ending) {
  std::size_t end = context.size();
  while (end > 0 && is_space(context[end - 1])) {
    --end;
  }
  const bool has_space = end < context.size() || end == 0 || is_space(ending.front());
  const std::string whole = std::string(context) + (has_space ? "" : " ") + std::string(ending);
  EncodedEnding encoded;
  const TextMarks& marks = tokenizer.marks();
  encoded.tokens = end == 0 ? marks.beginning() : marks.before;
  std::vector<std::int32_t> alone = encoded.tokens;
  tokenizer.encode(whole, encoded.tokens);
  tokenizer.encode(context.substr(0, end), alone);
  encoded.own = encoded.tokens.size() - std::min(encoded.tokens.size(), alone.size());
  return encoded;
}

ChoicesResult score_choices(const TrainedModel& model,
                            EvaluatorRanks& ranks,
                            const std::filesystem::path& file,
                            const std::vector<Question>& questions,
                            const OnEvalProgress& progress) {
  const std::vector<Item> items = encode_all(model, file, questions);
  const std::int64_t limit = model.config.data.sequence_length;
  const std::int64_t longest = num_inputs(*std::ranges::max_element(items, {}, num_inputs));
  const std::int64_t length =
      ranks.whole_length(std::min(limit, (longest + kLengthStep - 1) / kLengthStep * kLengthStep));
  std::vector<double> nats;  // of each ending
  ranks.run(length, [&](Evaluator& evaluator, bool keeps) {
    std::vector<double> found = score_items(evaluator, items, length, progress);
    if (keeps) {
      nats = std::move(found);
    }
  });
  ChoicesResult result;
  for (const Question& question : questions) {
    Scores& scores = result.scores.emplace_back();
    for (const std::string& ending : question.endings) {
      scores.characters.push_back(num_characters(ending));
      scores.bytes.push_back(static_cast<std::int64_t>(ending.size()));
    }
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    Scores& scores = result.scores[items[i].question];
    scores.log_probs.push_back(-nats[i]);
    scores.tokens.push_back(static_cast<std::int64_t>(items[i].encoded.own));
    result.num_cut += num_inputs(items[i]) > limit ? 1 : 0;
  }
  for (std::size_t q = 0; q < questions.size(); ++q) {
    if (const auto label = questions[q].label) {
      const auto wanted = static_cast<std::size_t>(*label);
      ++result.num_labels;
      result.right += result.scores[q].best() == wanted ? 1 : 0;
      result.right_by_character += result.scores[q].best_by_character() == wanted ? 1 : 0;
      result.right_by_byte += result.scores[q].best_by_byte() == wanted ? 1 : 0;
    }
  }
  return result;
}

std::string to_json(const Question& question, const Scores& scores) {
  nlohmann::ordered_json line({{"line", question.line}});
  if (question.label) {
    line["label"] = *question.label;
  }
  line["log_probs"] = scores.log_probs;
  line["tokens"] = scores.tokens;
  line["characters"] = scores.characters;
  line["bytes"] = scores.bytes;
  line["best"] = scores.best();
  line["best_normalized"] = scores.best_by_character();
  line["best_by_bytes"] = scores.best_by_byte();
  return line.dump();
}

}  // namespace tessera
