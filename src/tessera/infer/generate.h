#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dataset/prompts.h"
#include "tessera/ir/dtype.h"
#include "tessera/tokenizer/text_marks.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a checkpoint, or a run directory (its newest checkpoint)
  std::string prompt = {};           // where there is no file
  std::filesystem::path prompt_file = {};   // of one prompt; "-": stdin; empty: none
  std::filesystem::path prompts_file = {};  // of many prompts; "-": stdin; empty: none
  std::filesystem::path output = {};        // gets their continuations; empty: stdout does
  bool chat = false;                        // prompts are what a user says, to be answered
  std::string system = {};                  // and this, what the system says before; empty: nothing
  std::int64_t batch = 8;                   // prompts at a time
  std::int64_t max_tokens = 64;
  std::int64_t context = 0;             // tokens of a whole text; 0: as in training
  double temperature = 0.8;             // 0 = always the likeliest token
  std::int64_t top_k = 0;               // 0 = every token
  double top_p = 1.0;                   // 1 = every token
  double min_p = 0.0;                   // 0 = every token
  double repetition_penalty = 1.0;      // 1 = none
  std::vector<std::string> stops = {};  // a continuation ends before the first of them
  std::optional<DType> dtype = {};      // of weights and caches; none: as the run was trained
  std::string device = {};              // as run.device; empty: TrainedModel::device
  std::uint64_t seed = 42;
  MarkNames marks = {};  // in place of the run's
  bool verbose = false;  // says how fast it was, on a terminal or not
};

// Why a continuation ended.
enum class Finish {
  kEndOfText,  // the model said so, or ended its turn
  kStop,       // a stop string came
  kLength,     // it has as many tokens as were asked for
  kContext,    // the model's sequences have no more room
};

// "end_of_text", ...
std::string_view name(Finish finish);

struct Continuation {
  std::string text;             // without the prompt, valid UTF-8
  std::int64_t num_tokens = 0;  // the end-of-text token and those of a stop string included
  Finish finish = Finish::kLength;
};

// What hears of continuations. `prompt` is an index.
struct ContinuationSink {
  // Whole UTF-8 characters as they become certain; the first call has the prompt, in a chat not.
  std::function<void(std::size_t prompt, std::string_view text)> text = {};
  // In the order of the prompts.
  std::function<void(std::size_t prompt, const Continuation& continuation)> finished = {};
};

struct GenerationSpeed {
  std::int64_t prompt_tokens = 0;
  double prompt_seconds = 0.0;
  std::int64_t tokens = 0;  // that were run one by one, of all sequences
  double seconds = 0.0;
  std::int64_t sequence_length = 0;  // of the model
};

// The tokens that a continuation of `prompt` starts from: what stands before texts (TextMarks), and
// those of the prompt. Errors: kInvalidConfig where there is none, or no room for another in
// `sequence_length`.
std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer,
                                        const std::string& prompt,
                                        std::int64_t sequence_length);

// Continues each prompt with the model of a checkpoint, options.batch at a time; in a chat, answers
// it, by the template of the run's data (data.chat_template). What a prompt
// gives does not depend on the others: all draw with the same random numbers. Errors, before
// anything is said: kInvalidConfig where there is no checkpoint, or a prompt has no tokens or too
// many, with its place; kInvalidData where the checkpoint is damaged, or the tokenizer is not its
// own.
GenerationSpeed generate(const GenerateOptions& options,
                         std::span<const Prompt> prompts,
                         const ContinuationSink& sink);

}  // namespace tessera
