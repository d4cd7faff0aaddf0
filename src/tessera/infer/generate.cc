#include "tessera/infer/generate.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "tessera/backend/devices.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/machine.h"
#include "tessera/base/random.h"
#include "tessera/base/utf8.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/config.h"
#include "tessera/dataset/chat_template.h"
#include "tessera/infer/cached_model.h"
#include "tessera/infer/sampler.h"
#include "tessera/infer/stop_filter.h"
#include "tessera/infer/trained_model.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/require_checkpoint.h"
#include "tessera/resolve/resolve.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using Tokens = std::vector<std::int32_t>;

// A prompt's tokens run so many at a time: enough for matrix products to be at full speed.
constexpr std::int64_t kMaxChunk = 128;
constexpr std::int64_t kMaxChunkOfGpu = 1024;

// One sequence on its way: chooses tokens, and makes text of them.
class Sequence {
 public:
  // Ends behind one of `ends`.
  Sequence(const GenerateOptions& options,
           const Tokenizer& tokenizer,
           const Tokens& ends,
           Tokens prompt)
      : options_(options),
        tokenizer_(tokenizer),
        ends_(ends),
        key_(random_key(options.seed, "generate")),
        tokens_(std::move(prompt)),
        next_(tokens_.size()),
        stops_(options.stops) {}

  // The tokens that the model has not seen; none once it has ended.
  std::span<const std::int32_t> unseen() const {
    return ended_ ? std::span<const std::int32_t>() : std::span(tokens_).last(next_);
  }

  bool ended() const { return ended_; }

  // Chooses the token that follows, and returns the text that became certain. The model may have
  // more ids than there are tokens: their logits take no part.
  std::string go_on(std::span<const float> logits, std::int64_t sequence_length) {
    const std::int32_t token =
        choose(logits.first(static_cast<std::size_t>(tokenizer_.id_limit())));
    ++result_.num_tokens;
    if (std::ranges::count(ends_, token) > 0) {
      return end(Finish::kEndOfText);
    }
    tokens_.push_back(token);
    next_ = 1;
    std::string text =
        stops_.push(utf8_.push(tokenizer_.decode(std::span(&token, 1), {.continues = true})));
    if (stops_.stopped()) {
      text += end(Finish::kStop);
    } else if (result_.num_tokens == options_.max_tokens) {
      text += end(Finish::kLength);
    } else if (static_cast<std::int64_t>(tokens_.size()) >= sequence_length) {
      text += end(Finish::kContext);
    }
    result_.text += text;
    return text;
  }

  const Continuation& result() const { return result_; }

 private:
  std::int32_t choose(std::span<const float> logits) {
    const SamplingOptions sampling{.temperature = options_.temperature,
                                   .top_k = options_.top_k,
                                   .top_p = options_.top_p,
                                   .min_p = options_.min_p};
    const double random = uniform(key_, static_cast<std::uint64_t>(result_.num_tokens));
    if (options_.repetition_penalty == 1.0 && tokenizer_.holes().empty()) {
      return sample_token(logits, sampling, random);
    }
    changed_.assign(logits.begin(), logits.end());
    if (options_.repetition_penalty != 1.0) {
      penalize_repetition(changed_, tokens_, options_.repetition_penalty);
    }
    for (const std::int32_t hole : tokenizer_.holes()) {
      if (static_cast<std::size_t>(hole) < changed_.size()) {
        changed_[static_cast<std::size_t>(hole)] = -std::numeric_limits<float>::infinity();
      }
    }
    return sample_token(changed_, sampling, random);
  }

  // The last of the text.
  std::string end(Finish finish) {
    ended_ = true;
    result_.finish = finish;
    std::string text = stops_.push(utf8_.flush());
    return text + stops_.flush();
  }

  const GenerateOptions& options_;
  const Tokenizer& tokenizer_;
  const Tokens& ends_;
  std::uint64_t key_;
  Tokens tokens_;
  std::size_t next_;  // of tokens_, how many at its end the model has not seen
  std::vector<float> changed_;
  Utf8Stream utf8_;
  StopFilter stops_;
  Continuation result_;
  bool ended_ = false;
};

// Prompts [first, first + sequences.size()) at the same time, from their beginnings.
class Group {
 public:
  Group(CachedModel& model, std::int64_t sequence_length, const ContinuationSink& sink)
      : model_(model), sequence_length_(sequence_length), sink_(sink) {}

  void run(std::vector<Sequence>& sequences, std::size_t first, GenerationSpeed& speed) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      model_.clear(static_cast<std::int64_t>(i));
    }
    Clock::time_point start = Clock::now();
    speed.prompt_tokens += step(sequences, first);
    speed.prompt_seconds += seconds_since(start);
    start = Clock::now();
    while (!std::ranges::all_of(sequences, &Sequence::ended)) {
      speed.tokens += step(sequences, first);
    }
    speed.seconds += seconds_since(start);
    for (std::size_t i = 0; sink_.finished && i < sequences.size(); ++i) {
      sink_.finished(first + i, sequences[i].result());
    }
  }

 private:
  // One more token for each sequence that has not ended; how many tokens the model saw.
  std::int64_t step(std::vector<Sequence>& sequences, std::size_t first) {
    std::vector<std::span<const std::int32_t>> unseen(model_.batch());
    std::int64_t count = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      unseen[i] = sequences[i].unseen();
      count += static_cast<std::int64_t>(unseen[i].size());
    }
    model_.append(unseen);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (!sequences[i].ended()) {
        const std::string text =
            sequences[i].go_on(model_.logits(static_cast<std::int64_t>(i)), sequence_length_);
        if (sink_.text && !text.empty()) {
          sink_.text(first + i, text);
        }
      }
    }
    return count;
  }

  CachedModel& model_;
  std::int64_t sequence_length_;
  const ContinuationSink& sink_;
};

// What a model reads of a prompt.
using Encode = std::function<Tokens(const std::string& prompt)>;

std::vector<Tokens> tokens_of(std::span<const Prompt> prompts, const Encode& encode) {
  std::vector<Tokens> tokens;
  for (const Prompt& prompt : prompts) {
    try {
      tokens.push_back(encode(prompt.text));
    } catch (const Error& error) {
      fail(error.code(), "{}{}", prompt.place.empty() ? "" : prompt.place + ": ", error.message());
    }
  }
  return tokens;
}

void require_room(const Tokens& prompt, std::int64_t sequence_length) {
  TESSERA_REQUIRE(static_cast<std::int64_t>(prompt.size()) < sequence_length,
                  ErrorCode::kInvalidConfig,
                  "the prompt has {} tokens, expected less than the {} of the model's sequences "
                  "(data.sequence_length)",
                  prompt.size(),
                  sequence_length);
}

Tokens chat_tokens(const ChatTemplate& chat,
                   const std::string& system,
                   const std::string& prompt,
                   std::int64_t sequence_length) {
  std::vector<Message> messages;
  if (!system.empty()) {
    messages.push_back({.role = Role::kSystem, .content = system});
  }
  messages.push_back({.role = Role::kUser, .content = prompt});
  Tokens tokens;
  chat.encode_prompt(messages, tokens);
  require_room(tokens, sequence_length);
  return tokens;
}

// On the device that `options` name, or the model has.
std::unique_ptr<CachedModel> make_model(const GenerateOptions& options,
                                        const TrainedModel& trained,
                                        CachedModelOptions cached,
                                        std::size_t longest_prompt) {
  RunConfig config = trained.config;
  // As a key of the run's, so that what is wrong with it is told of the command.
  apply_override(config,
                 "--run.device=" + (options.device.empty() ? trained.device : options.device));
  if (!options.device.empty()) {
    config.origins.places["run.device"] = "--device=" + options.device;
  }
  resolve_device(config);
  cached.target = run_target(config);
  cached.threads = config.run.threads;
  const bool on_gpu = cached.target.is_device();
  cached.chunk = std::min(on_gpu ? kMaxChunkOfGpu : kMaxChunk,
                          static_cast<std::int64_t>(std::bit_ceil(longest_prompt)));
  cached.memory_limit_bytes =
      on_gpu ? device_memory_limit(find_devices(), 1, 0) : free_memory_bytes();
  return std::make_unique<CachedModel>(
      trained.model,
      make_run_backend(config.run.device, static_cast<int>(config.run.threads)),
      cached);
}

// Of a checkpoint in bf16 the f32 masters are the weights of a model in f32.
void load(CachedModel& model, const CheckpointReader& checkpoint, DType trained, DType dtype) {
  if (trained == DType::kF32 && dtype == DType::kBF16) {
    load_rounded(model.executor(), checkpoint);
  } else {
    load_state(model.executor(), model.parameters(), checkpoint);
  }
}

}  // namespace

std::string_view name(Finish finish) {
  switch (finish) {
    case Finish::kEndOfText:
      return "end_of_text";
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kContext:
      return "context";
  }
  return "unknown";
}

std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer,
                                        const std::string& prompt,
                                        std::int64_t sequence_length) {
  const TextMarks& marks = tokenizer.marks();
  std::vector<std::int32_t> tokens = prompt.empty() ? marks.beginning() : marks.before;
  tokenizer.encode(prompt, tokens);
  TESSERA_REQUIRE(!tokens.empty(),
                  ErrorCode::kInvalidConfig,
                  "the prompt is empty and the tokenizer has no token that begins or ends a text");
  require_room(tokens, sequence_length);
  return tokens;
}

namespace {

// The same of the checkpoint that `options` name. `is_loaded` once nothing more is read of it.
GenerationSpeed generate_with(const GenerateOptions& options,
                              std::span<const Prompt> prompts,
                              const ContinuationSink& sink,
                              bool& is_loaded) {
  TrainedModel trained = open_trained_model(options.checkpoint);
  trained.tokenizer = with_named_marks(trained.text_tokenizer(), options.marks, "--");
  const RunConfig& config = trained.config;
  const DType dtype = options.dtype.value_or(config.train.dtype);
  GenerationSpeed speed{.sequence_length =
                            options.context > 0 ? options.context : config.data.sequence_length};
  std::optional<ChatTemplate> chat;
  if (options.chat) {
    chat.emplace(trained.text_tokenizer(), config.data.chat_template);
    const TemplateDifference difference = template_difference(trained.text_tokenizer(), *chat);
    if (config.data.chat_template == ChatTemplateName::kAuto && difference.is_other) {
      log_warning(format("{}: the prompt is written as {} all the same",
                         difference.text,
                         to_string(chat->name())));
    }
  }
  std::vector<Tokens> tokens = tokens_of(prompts, [&](const std::string& prompt) {
    return chat ? chat_tokens(*chat, options.system, prompt, speed.sequence_length)
                : prompt_tokens(trained.text_tokenizer(), prompt, speed.sequence_length);
  });
  Tokens ends = trained.text_tokenizer().marks().eos;
  if (chat) {
    ends.push_back(chat->end_of_turn());
  }
  const auto longest = std::ranges::max(tokens, {}, &Tokens::size).size();
  const std::unique_ptr<CachedModel> made =
      make_model(options,
                 trained,
                 {.dtype = dtype,
                  .batch = std::min(options.batch, static_cast<std::int64_t>(prompts.size())),
                  .sequence_length = speed.sequence_length},
                 longest);
  CachedModel& model = *made;
  load(model, *trained.weights, config.train.dtype, dtype);
  is_loaded = true;
  for (std::size_t first = 0; first < prompts.size(); first += model.batch()) {
    std::vector<Sequence> sequences;
    for (std::size_t i = first; i < std::min(first + model.batch(), prompts.size()); ++i) {
      if (sink.text && !chat) {
        sink.text(i, prompts[i].text);
      }
      sequences.emplace_back(options, trained.text_tokenizer(), ends, std::move(tokens[i]));
    }
    Group(model, speed.sequence_length, sink).run(sequences, first, speed);
  }
  return speed;
}

}  // namespace

GenerationSpeed generate(const GenerateOptions& options,
                         std::span<const Prompt> prompts,
                         const ContinuationSink& sink) {
  bool is_loaded = false;
  std::exception_ptr failure;  // of what was loaded already
  GenerationSpeed speed = with_checkpoint(
      options.checkpoint, [&](const std::filesystem::path& checkpoint) -> GenerationSpeed {
        GenerateOptions found = options;
        found.checkpoint = checkpoint;
        try {
          return generate_with(found, prompts, sink, is_loaded);
        } catch (const Error&) {
          if (!is_loaded) {
            throw;
          }
          failure = std::current_exception();
          return {};
        }
      });
  if (failure) {
    std::rethrow_exception(failure);
  }
  return speed;
}

}  // namespace tessera
