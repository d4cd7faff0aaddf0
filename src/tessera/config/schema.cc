#include "tessera/config/schema.h"

#include <initializer_list>
#include <utility>

#include "tessera/config/codec.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

using codec::Codec;

// A key of a section S that is not tied to the whole config yet.
template <class S>
struct Row {
  ConfigKey key;
  std::function<void(S&, const ConfigValue&)> set;
  std::function<std::optional<ConfigValue>(const S&)> get;
};

template <class S, class T>
Row<S> row(std::string_view name, T S::* member, const Codec<T>& codec, std::string_view doc) {
  return {.key = {.name = name, .expected = codec.expected, .doc = doc, .form = codec.form},
          .set = [=](S& section, const ConfigValue& value) { section.*member = codec.read(value); },
          .get = [=](const S& section) { return codec.write(section.*member); }};
}

// A value that may be left out.
template <class S, class T>
Row<S> row(std::string_view name,
           std::optional<T> S::* member,
           const Codec<T>& codec,
           std::string_view doc) {
  return {.key = {.name = name, .expected = codec.expected, .doc = doc, .form = codec.form},
          .set = [=](S& section, const ConfigValue& value) { section.*member = codec.read(value); },
          .get = [=](const S& section) -> std::optional<ConfigValue> {
            const std::optional<T>& held = section.*member;
            return held ? std::optional(codec.write(*held)) : std::nullopt;
          }};
}

template <class S>
ConfigSection section(std::string_view name,
                      S RunConfig::* member,
                      std::string_view doc,
                      std::initializer_list<Row<S>> rows) {
  ConfigSection result{.name = name, .doc = doc, .keys = {}};
  for (const Row<S>& row : rows) {
    ConfigKey key = row.key;
    key.set = [=, set = row.set](RunConfig& config, const ConfigValue& v) {
      set(config.*member, v);
    };
    key.get = [=, get = row.get](const RunConfig& config) { return get(config.*member); };
    result.keys.push_back(std::move(key));
  }
  return result;
}

// The models' own list, and none.
std::vector<std::string_view> flavors() {
  std::vector<std::string_view> names = llama_flavors();
  names.insert(names.begin(), "");
  return names;
}

ConfigSection run() {
  using S = RunSection;
  return section(
      "run",
      &RunConfig::run,
      "Where the run lives and what it may use.",
      {row("dir",
           &S::dir,
           codec::text(),
           "Directory of metrics, checkpoints and the resolved config. Required."),
       row("seed",
           &S::seed,
           codec::at_least(0),
           "Initial weights and data order depend on it and on nothing else of the machine."),
       row("threads",
           &S::threads,
           codec::between(0, 4096),
           "Threads per rank. 0: every core that the process may use.")});
}

ConfigSection model() {
  using S = ModelSection;
  return section(
      "model",
      &RunConfig::model,
      "What is trained: a named flavor, explicit dims, or a flavor with some dims replaced.",
      {row("name", &S::name, codec::word({"llama3"}), "Model family."),
       row("flavor",
           &S::flavor,
           codec::word(flavors()),
           "Published size of the family. Empty: dim, layers, heads, ffn and vocab are required."),
       row("dim", &S::dim, codec::size(), "Width of the residual stream. Left out: the flavor's."),
       row("layers", &S::layers, codec::size(), "Transformer blocks. Left out: the flavor's."),
       row("heads",
           &S::heads,
           codec::size(),
           "Query heads; dim / heads is the head's width, an even number. Left out: the flavor's."),
       row("kv_heads",
           &S::kv_heads,
           codec::size(),
           "Key and value heads; divides heads. Left out: the flavor's, else heads."),
       row("ffn",
           &S::ffn,
           codec::size(),
           "Hidden width of the feed-forward network. Left out: the flavor's."),
       row("vocab",
           &S::vocab,
           codec::size(),
           "Rows of the embedding: the tokenizer's entries. Left out: the flavor's."),
       row("tied",
           &S::tied,
           codec::boolean(),
           "Embedding and output head share one weight. Left out: the flavor's, else false."),
       row("rope_scaling",
           &S::rope_scaling,
           codec::boolean(),
           "Llama 3.1 scaling of rotary frequencies. Left out: the flavor's, else false."),
       row("rope_theta", &S::rope_theta, codec::positive(), "Base of the rotary frequencies."),
       row("norm_eps", &S::norm_eps, codec::positive(), "Added to the mean square in RMS norms.")});
}

ConfigSection tokenizer() {
  using S = TokenizerSection;
  return section("tokenizer",
                 &RunConfig::tokenizer,
                 "How text becomes tokens.",
                 {row("path",
                      &S::path,
                      codec::text(),
                      "Byte-level BPE tokenizer, a Hugging Face tokenizer.json. Required."),
                  row("train_vocab",
                      &S::train_vocab,
                      codec::size_or_zero(),
                      "When path does not exist: train a tokenizer with this many entries on the "
                      "data files and save it there. 0: never train.")});
}

ConfigSection data() {
  using S = DataSection;
  return section(
      "data",
      &RunConfig::data,
      "What the model reads. Relative paths start at the working directory.",
      {row("files", &S::files, codec::text_list(), "Input files, read in this order. Required."),
       row("format",
           &S::format,
           codec::choice({DataFormat::kText}),
           "text: plain text; bytes that are not UTF-8 are kept as they are."),
       row("sequence_length", &S::sequence_length, codec::size(), "Tokens per sequence."),
       row("shuffle",
           &S::shuffle,
           codec::boolean(),
           "Draw sequences in an order given by run.seed and the epoch; else as they stand."),
       row("document_mask",
           &S::document_mask,
           codec::boolean(),
           "A token attends to its own document only."),
       row("mask_boundary",
           &S::mask_boundary,
           codec::boolean(),
           "Leave the label that crosses from one document into the next out of the loss."),
       row("document_separator",
           &S::document_separator,
           codec::text(),
           "Text that ends a document inside a file. Empty: one file is one document.")});
}

ConfigSection train() {
  using S = TrainSection;
  return section(
      "train",
      &RunConfig::train,
      "How long and how much at once.",
      {row("steps", &S::steps, codec::size(), "Optimizer steps."),
       row("global_batch", &S::global_batch, codec::size(), "Sequences per step."),
       row("microbatch",
           &S::microbatch,
           codec::size(),
           "Sequences per forward and backward; divides global_batch. Smaller needs less memory."),
       row("dtype",
           &S::dtype,
           codec::choice({DType::kF32, DType::kBF16}, tessera::name),
           "Type of activations and of the weights that compute. Optimizer state is f32.")});
}

ConfigSection optimizer() {
  using S = OptimizerSection;
  return section(
      "optimizer",
      &RunConfig::optimizer,
      "How weights follow gradients.",
      {row("name", &S::name, codec::choice({OptimizerName::kAdamW}), "Optimizer."),
       row("lr", &S::lr, codec::positive(), "Peak learning rate."),
       row("betas", &S::betas, codec::pair(codec::below_one()), "Decay of the two moments."),
       row("eps", &S::eps, codec::positive(), "Added to the root of the second moment."),
       row("weight_decay", &S::weight_decay, codec::not_negative(), "Decoupled weight decay."),
       row("clip",
           &S::clip,
           codec::not_negative(),
           "Gradients are scaled down to this global L2 norm. 0: never.")});
}

ConfigSection schedule() {
  using S = Schedule;
  return section(
      "schedule",
      &RunConfig::schedule,
      "Learning rate over the run: warmup, a stable part, decay.",
      {row("warmup",
           &S::warmup,
           codec::size_or_zero(),
           "Steps of linear warmup: step n takes optimizer.lr * min(1, n / warmup)."),
       row("decay_ratio",
           &S::decay_ratio,
           codec::ratio(),
           "Share of the steps, at the end, over which the rate decays. 0: never."),
       row("decay",
           &S::decay,
           codec::choice({Decay::kLinear, Decay::kCosine, Decay::kSqrt}),
           "Shape of the decay."),
       row("floor",
           &S::floor,
           codec::ratio(),
           "Share of optimizer.lr that the decay ends at; step `steps + 1` would reach it.")});
}

ConfigSection memory() {
  using S = MemorySection;
  return section("memory",
                 &RunConfig::memory,
                 "What is kept, what is computed again, and how much there is.",
                 {row("recompute",
                      &S::recompute,
                      codec::choice({Recompute::kNone, Recompute::kFull}),
                      "none: keep every activation for backward. full: keep each layer's input "
                      "and compute the rest again. Results are bitwise the same."),
                  row("limit_bytes",
                      &S::limit_bytes,
                      codec::at_least(0),
                      "A plan that needs more is refused before it starts. 0: what the machine "
                      "has.")});
}

ConfigSection checkpoint() {
  using S = CheckpointSection;
  return section(
      "checkpoint",
      &RunConfig::checkpoint,
      "When state is saved and where a run starts from.",
      {row("every",
           &S::every,
           codec::size_or_zero(),
           "Steps between checkpoints. 0: only at the end."),
       row("keep",
           &S::keep,
           codec::size_or_zero(),
           "Newest checkpoints that stay on disk. 0: all."),
       row("resume",
           &S::resume,
           codec::text(),
           "\"auto\": from the newest checkpoint in run.dir, if any. \"none\": from the "
           "start. Else the path of a checkpoint, or of a run directory for its newest.")});
}

ConfigSection log() {
  using S = LogSection;
  return section("log",
                 &RunConfig::log,
                 "What is shown.",
                 {row("every",
                      &S::every,
                      codec::size(),
                      "Steps between progress lines where the output is not a terminal.")});
}

ConfigSection sample() {
  using S = SampleSection;
  return section(
      "sample",
      &RunConfig::sample,
      "The continuation that `tessera train` prints at its end.",
      {row("prompt", &S::prompt, codec::text(), "Text to continue. Empty: none is printed."),
       row("tokens", &S::tokens, codec::size(), "Length of the continuation in tokens."),
       row("temperature",
           &S::temperature,
           codec::not_negative(),
           "Randomness of the choice. 0: always the likeliest token.")});
}

ConfigSection passes() {
  using S = PassesSection;
  return section(
      "passes",
      &RunConfig::passes,
      "How the graph is compiled.",
      {row("fuse",
           &S::fuse,
           codec::boolean(),
           "Fuse neighbouring operations into one kernel. Results stay the same, bit by bit."),
       row("group_gemms",
           &S::group_gemms,
           codec::boolean(),
           "Compute products that share an input (q, k, v; gate, up) as one; changes the last "
           "bits."),
       row("dump",
           &S::dump,
           codec::text(),
           "Directory that receives the output of every pass as text. Empty: none.")});
}

}  // namespace

std::vector<ConfigSection> schema() {
  return {run(),
          model(),
          tokenizer(),
          data(),
          train(),
          optimizer(),
          schedule(),
          memory(),
          checkpoint(),
          log(),
          sample(),
          passes()};
}

}  // namespace tessera
