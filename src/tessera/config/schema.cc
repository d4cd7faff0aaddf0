#include "tessera/config/schema.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/config/codec.h"
#include "tessera/models/family.h"
#include "tessera/models/hugging_face.h"
#include "tessera/models/model_keys.h"

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

// The error of a table's entry: with its place in the file, where there is one.
[[noreturn]] void refuse_entry(const std::string& place, const std::string& message) {
  if (place.empty()) {
    fail(ErrorCode::kInvalidConfig, "{}", message);
  }
  throw codec::PlacedError(ErrorCode::kInvalidConfig, format("{}: {}", place, message));
}

// `name` is the whole name of the list, for messages: "data.sources".
template <class S>
S read_table(const ConfigValue& value,
             std::string_view name,
             const std::vector<Row<S>>& rows,
             std::string_view expected) {
  S result;
  for (const ConfigEntry& entry : codec::require<ConfigValue::Table>(value, expected)) {
    const auto row = std::ranges::find(rows, entry.key, [](const Row<S>& r) { return r.key.name; });
    if (row == rows.end()) {
      std::vector<std::string> names;
      for (const Row<S>& known : rows) {
        names.emplace_back(known.key.name);
      }
      refuse_entry(
          entry.key_place,
          format("unknown key \"{}.{}\"{}", name, entry.key, did_you_mean(entry.key, names)));
    }
    try {
      row->set(result, entry.value);
    } catch (const Error& error) {
      refuse_entry(entry.value_place, format("{}.{}: {}", name, entry.key, error.message()));
    }
  }
  return result;
}

// A list of tables, each an S.
template <class S>
Codec<std::vector<S>> tables(std::string_view name, const std::vector<Row<S>>& rows) {
  constexpr std::string_view kExpected = "list of tables";
  auto read = [=](const ConfigValue& value) {
    std::vector<S> result;
    for (const ConfigValue& element : codec::require<ConfigValue::List>(value, kExpected)) {
      result.push_back(read_table(element, name, rows, kExpected));
    }
    return result;
  };
  auto write = [=](const std::vector<S>& elements) {
    ConfigValue::List list;
    for (const S& element : elements) {
      ConfigValue::Table table;
      for (const Row<S>& row : rows) {
        if (std::optional<ConfigValue> value = row.get(element)) {
          table.push_back({.key = std::string(row.key.name), .value = std::move(*value)});
        }
      }
      list.push_back({std::move(table)});
    }
    return ConfigValue{std::move(list)};
  };
  return {
      .expected = std::string(kExpected), .form = ValueForm::kList, .read = read, .write = write};
}

template <class S, class E>
Row<S> table_row(std::string_view name,
                 std::vector<E> S::* member,
                 std::string_view full_name,
                 const std::vector<Row<E>>& rows,
                 std::string_view doc) {
  Row<S> result = row(name, member, tables(full_name, rows), doc);
  for (const Row<E>& column : rows) {
    ConfigKey key = column.key;
    key.get = [get = column.get](const RunConfig&) { return get(E{}); };
    result.key.columns.push_back(std::move(key));
  }
  return result;
}

template <class S>
ConfigSection section(std::string_view name,
                      S RunConfig::* member,
                      std::string_view doc,
                      const std::vector<Row<S>>& rows) {
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

// A size of a model, as any family may have it.
Row<ModelSection> size_row(const ModelKey& key) {
  const auto with = [&](const auto& codec) {
    using T = std::decay_t<decltype(codec.read(std::declval<ConfigValue>()))>;
    return row(key.name, std::get<std::optional<T> ModelSection::*>(key.member), codec, key.doc);
  };
  switch (key.range) {
    case SizeRange::kSize:
      return with(codec::size());
    case SizeRange::kLayers:
      return with(codec::between(1, kMaxLayers));
    case SizeRange::kFlag:
      return with(codec::boolean());
    case SizeRange::kPositive:
      return with(codec::positive());
    case SizeRange::kFromZero:
      return with(codec::not_negative());
    case SizeRange::kRatio:
      return with(codec::ratio());
    case SizeRange::kList:
      return with(codec::positive_list());
  }
  fail(ErrorCode::kInternal, "model.{} has no range", key.name);
}

std::vector<std::string_view> families() {
  std::vector<std::string_view> names;
  for (const ModelFamily& family : model_families()) {
    names.push_back(family.name);
  }
  return names;
}

Codec<DataFormat> data_format() {
  return codec::choice({DataFormat::kAuto,
                        DataFormat::kText,
                        DataFormat::kJsonl,
                        DataFormat::kTokens,
                        DataFormat::kMegatron,
                        DataFormat::kChat});
}

Codec<RawTokens> raw_tokens() {
  return codec::choice({RawTokens::kU16, RawTokens::kU32});
}

// Those of all families, and none.
std::vector<std::string_view> flavors() {
  std::vector<std::string_view> names = {""};
  for (const ModelFamily& family : model_families()) {
    for (const std::string_view flavor : family.flavors) {
      if (std::ranges::find(names, flavor) == names.end()) {
        names.push_back(flavor);
      }
    }
  }
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
           codec::path(),
           "Directory of metrics, checkpoints and the resolved config. Required."),
       row("seed",
           &S::seed,
           codec::at_least(0),
           "Initial weights and data order depend on it and on nothing else of the machine."),
       row("threads",
           &S::threads,
           codec::between(0, 4096),
           "Threads per rank. 0: the cores that the process may use, divided among the ranks on "
           "this machine."),
       row("device",
           &S::device,
           codec::word({"cpu", "cuda", "auto"}),
           "What computes the training: cuda is NVIDIA GPUs (tessera doctor shows them), of which "
           "each rank takes one; where there are fewer, ranks share them. auto is cuda where there "
           "is a GPU, else the CPU."),
       row("cuda_graphs",
           &S::cuda_graphs,
           codec::boolean(),
           "On GPUs, whether what a step does between collectives, or with NCCL's all of it, is "
           "recorded in the second step and begun as one from then on. Off, each kernel is begun "
           "by "
           "itself: the bits are the same."),
       row("deterministic",
           &S::deterministic,
           codec::boolean(),
           "Whether a run that is repeated gives the same bits. Off, a GPU may add up the parts of "
           "attention's gradients in the order in which they come (with data.document_mask = "
           "false), which takes less time and memory, and NVLink's switches those of ranks."),
       row("time_gemms",
           &S::time_gemms,
           codec::boolean(),
           "On a GPU, whether the algorithms that cuBLASLt proposes for a matrix product are timed "
           "the first time that its shape comes up, and the fastest kept: in the run directory, so "
           "that a run that goes on has the same, and in the user's cache for the next one. "
           "Several ranks that have a GPU each do so in a step without effect before their first. "
           "Off, and for ranks that share a GPU, the first proposed is taken.")});
}

ConfigSection model() {
  using S = ModelSection;
  std::vector<Row<S>> rows = {
      row("name", &S::name, codec::word(families()), "Model family."),
      row("flavor",
          &S::flavor,
          codec::word(flavors()),
          "Published size. Empty: dim, layers, heads, ffn and vocab are required, or weights."),
      row("weights",
          &S::weights,
          codec::path(),
          "What training starts from: a directory in Hugging Face's form (config.json, "
          "*.safetensors), a checkpoint, or a run directory (its newest checkpoint), of which the "
          "weights alone are taken. Their sizes hold where no flavor and no dims are given. A "
          "checkpoint of the run comes before them."),
      row("grow_vocab",
          &S::grow_vocab,
          codec::boolean(),
          "Whether the model may have more ids than weights: vocab, left out as many as the "
          "tokenizer has entries. Each new row of embedding and head starts as the mean of the "
          "others, so that a tokenizer with more tokens (those of a chat, say) can be trained.")};
  for (const ModelKey& key : model_keys()) {
    rows.push_back(size_row(key));
  }
  return section("model",
                 &RunConfig::model,
                 "What is trained: a named flavor, explicit dims, or a flavor with some dims "
                 "replaced.",
                 rows);
}

ConfigSection tokenizer() {
  using S = TokenizerSection;
  return section(
      "tokenizer",
      &RunConfig::tokenizer,
      "How text becomes tokens.",
      {row("path",
           &S::path,
           codec::path(),
           "A tokenizer: tokenizer.json, a tiktoken or SentencePiece .model, or encoder.json "
           "beside vocab.bpe (docs/formats.md). Left out with train_vocab: tokenizer.json in "
           "run.dir; with model.weights: theirs; else none, for data that are tokens."),
       row("train_vocab",
           &S::train_vocab,
           codec::size_or_zero(),
           "When path does not exist: train a tokenizer with this many entries on the "
           "data files and save it there. 0: never train."),
       row("train_special",
           &S::train_special,
           codec::text_list(),
           "Special tokens that one trained so has behind the marks of a text, among its entries: "
           "what later training needs is decided before pretraining."),
       row("train_chat",
           &S::train_chat,
           codec::word({"none", "llama3", "chatml"}),
           "The chat template whose control tokens it has as well."),
       row("bos",
           &S::bos,
           codec::text_list(),
           "Tokens, by name, that stand before each document, each prompt and each context of a "
           "scored ending. []: none. Left out: as the tokenizer's files say (docs/formats.md)."),
       row("eos",
           &S::eos,
           codec::text_list(),
           "Tokens, by name, that end a text: the first stands after each document, and any of "
           "them ends what is generated. []: none. Left out: as the tokenizer's files say.")});
}

std::vector<Row<DataSource>> data_source() {
  using S = DataSource;
  return {row("files",
              &S::files,
              codec::path_list(),
              "Input files of the source, as data.files. Required."),
          row("weight",
              &S::weight,
              codec::positive(),
              "Its share of the sequences of the run, beside the weights of the others."),
          row("format", &S::format, data_format(), "Left out: data.format."),
          row("field", &S::field, codec::text(), "Left out: data.field."),
          row("token_type", &S::token_type, raw_tokens(), "Left out: data.token_type."),
          row("document_separator",
              &S::document_separator,
              codec::text(),
              "Left out: data.document_separator.")};
}

ConfigSection data() {
  using S = DataSection;
  return section(
      "data",
      &RunConfig::data,
      "What the model reads. Relative paths start at the working directory.",
      {row("files",
           &S::files,
           codec::path_list(),
           "Input files, read in this order; also folders, with all that is in them and below, and "
           "patterns (\"corpus/*.txt\"), both in the order of the names, hidden files left out. "
           "Required, unless there are sources."),
       table_row("sources",
                 &S::sources,
                 "data.sources",
                 data_source(),
                 "In place of files: several sources, each with a weight, as tables "
                 "[[data.sources]]."),
       row("format",
           &S::format,
           data_format(),
           "auto: each file as its name says: .jsonl, .ndjson and .json are jsonl, .bin and .idx "
           "megatron, .npy tokens, others text. "
           "text: plain text; bytes that are not UTF-8 are kept as they are. jsonl: a JSON object "
           "a line, a document each. Both may be .gz or .zst. tokens: ids of token_type, without "
           "a header. megatron: .bin and .idx, named by either or by what they share. chat: a "
           "conversation a line, {\"messages\": [{\"role\": .., \"content\": ..}, ..]}, of which "
           "only what the assistant says is trained; .gz and .zst too."),
       row("field", &S::field, codec::text(), "Key of the text in the objects of jsonl."),
       row("token_type",
           &S::token_type,
           raw_tokens(),
           "Type of the ids of tokens, little-endian; a NumPy array (.npy) says its own. A "
           "document "
           "ends with the tokenizer's EOS."),
       row("chat_template",
           &S::chat_template,
           codec::choice(
               {ChatTemplateName::kAuto, ChatTemplateName::kLlama3, ChatTemplateName::kChatml}),
           "How conversations of chat become tokens (docs/formats.md). auto: as the tokenizer's "
           "special tokens say."),
       row("skip_broken",
           &S::skip_broken,
           codec::boolean(),
           "Leave out and count lines of jsonl and chat that are broken or not what they should "
           "be; else they are errors."),
       row("unpacked_limit",
           &S::unpacked_limit,
           codec::at_least(1),
           "Bytes that a .gz or .zst file may unpack to; a larger one is an error."),
       row("validation_share",
           &S::validation_share,
           codec::below_one(),
           "Share of each source, at its end, that is kept out of training for validation."),
       row("validation_files",
           &S::validation_files,
           codec::path_list(),
           "Files for validation, as data.files; instead of validation_share."),
       row("sequence_length", &S::sequence_length, codec::size(), "Tokens per sequence."),
       row("shuffle",
           &S::shuffle,
           codec::boolean(),
           "Draw sequences in an order given by run.seed and the epoch; else as they stand."),
       row("document_mask",
           &S::document_mask,
           codec::boolean(),
           "A token attends to its own document only. Without, a GPU can take "
           "cuDNN's attention backward, too."),
       row("mask_boundary",
           &S::mask_boundary,
           codec::boolean(),
           "Leave the label that crosses from one document into the next out of the loss."),
       row("document_separator",
           &S::document_separator,
           codec::text(),
           "Text that ends a document inside a file of text. Empty: one file is one document.")});
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
           "Type of activations and of the weights that compute. Optimizer state is f32."),
       row("logits",
           &S::logits,
           codec::choice({DType::kF32, DType::kBF16}, tessera::name),
           "Format of logits between the head's product and the loss, which computes in f32. bf16, "
           "as most other systems have it, halves what GPUs move of them: with train.dtype = "
           "\"bf16\"."),
       row("tf32",
           &S::tf32,
           codec::boolean(),
           "On GPUs, whether products of f32 round their factors to tf32 (10 bits in place of 23), "
           "which tensor cores take.")});
}

ConfigSection validation() {
  using S = ValidationSection;
  return section(
      "validation",
      &RunConfig::validation,
      "The loss on data that is kept out of training: data.validation_share or "
      "data.validation_files.",
      {row("every", &S::every, codec::size_or_zero(), "Steps between validations. 0: never."),
       row("sequences",
           &S::sequences,
           codec::size_or_zero(),
           "Sequences that a validation reads, always the same, evenly spread over those held out. "
           "0: all.")});
}

ConfigSection lora() {
  using S = LoraSection;
  return section(
      "lora",
      &RunConfig::lora,
      "Low-rank adapters (LoRA): the weights of model.weights stay as they are, and to each target "
      "W a product of two small matrices is added, W + alpha / rank * B A, which alone is trained.",
      {row("rank",
           &S::rank,
           codec::size_or_zero(),
           "Rows of A and columns of B. 0: no adapters, every weight is trained."),
       row("alpha",
           &S::alpha,
           codec::positive(),
           "Scale of the adapters, times rank. Left out: rank, a scale of 1."),
       row("targets",
           &S::targets,
           codec::text_list(),
           "Weights that get an adapter, in every layer, by the last part of their names here "
           "(\"wq\") or in Hugging Face's files (\"q_proj\"). Empty: all matrices of the "
           "layers.")});
}

ConfigSection float8() {
  using S = Float8Section;
  return section(
      "float8",
      &RunConfig::float8,
      "Matrix products of the layers, those of backward too, in 8-bit floats with scales of the "
      "values at hand. Weights, gradients and what lies between products keep train.dtype, and so "
      "do adapters and, unless it is chosen, the head. CPUs emulate it exactly, and more slowly "
      "than f32.",
      {row("recipe",
           &S::recipe,
           codec::choice({Float8Recipe::kOff, Float8Recipe::kTensorwise, Float8Recipe::kRowwise}),
           "What shares a scale: a whole tensor, or each row of a left factor and each column of a "
           "right one, with scales that are powers of two. off: no 8-bit floats."),
       row("gradients",
           &S::gradients,
           codec::choice({DType::kF8E5M2, DType::kF8E4M3}, tessera::name),
           "Format of the gradients that products of backward read; their other factors are "
           "f8e4m3. Left out: f8e5m2 with recipe tensorwise, f8e4m3 with rowwise."),
       row("skip_first",
           &S::skip_first,
           codec::size_or_zero(),
           "The first layers that stay in train.dtype."),
       row("skip_last",
           &S::skip_last,
           codec::size_or_zero(),
           "The last layers that stay in train.dtype."),
       row("head",
           &S::head,
           codec::boolean(),
           "Whether the head's products are in 8-bit floats as well. The gradient of its logits is "
           "f8e5m2 with every recipe: most of it is probabilities that f8e4m3 takes for zero."),
       row("fast_accumulation",
           &S::fast_accumulation,
           codec::boolean(),
           "On GPUs, whether the layers' products of forward may add up with fewer bits than f32 "
           "has, as tensor cores do it fastest. CPUs add in f32 all the same."),
       row("keep_weight_codes",
           &S::keep_weight_codes,
           codec::boolean(),
           "Whether weights are quantized once for forward and backward, with recipe tensorwise. "
           "Their codes then take a byte a weight of the layers from one to the other; weights "
           "that are cut (state.param) are gathered once.")});
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
       row("weight_decay",
           &S::weight_decay,
           codec::not_negative(),
           "Decoupled weight decay: each step takes the learning rate times this off every weight "
           "that is trained, or off matrices alone (decay)."),
       row("decay",
           &S::decay,
           codec::choice({DecayedWeights::kAll, DecayedWeights::kMatrices}),
           "Which weights decay. all: every weight that is trained, norms, biases and embeddings "
           "too, as PyTorch's AdamW over all parameters does. matrices: the weights of products, "
           "adapters too, and of a tied model the embedding, which is its head; norms, biases and "
           "embeddings that are looked up alone stay out. So nanoGPT and llm.c do it, but for "
           "GPT-2's embedding of positions, which decays there."),
       row("clip",
           &S::clip,
           codec::not_negative(),
           "Gradients are scaled down to this global L2 norm. 0: never."),
       row("moments",
           &S::moments,
           codec::choice({DType::kF32, DType::kBF16}, tessera::name),
           "Format of the two moments at rest. bf16 halves them; updates are computed in f32, and "
           "betas may then be 0.99 at most."),
       row("gradients",
           &S::gradients,
           codec::choice({DType::kF32, DType::kBF16}, tessera::name),
           "Format of the layers' weight gradients. bf16 halves what they take and what the update "
           "reads: in bf16 training, where nothing adds them up (one microbatch, one data "
           "rank).")});
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
           "Steps of linear warmup: step n takes optimizer.lr * min(1, n / warmup). Left out or in "
           "a file, it is shorter where the run is too short for it and the decay."),
       row("decay_ratio",
           &S::decay_ratio,
           codec::ratio(),
           "Share of the steps, at the end, over which the rate decays. 0: never. With a warmup "
           "that is named it may be left out, too."),
       row("decay",
           &S::decay,
           codec::choice({Decay::kLinear, Decay::kCosine, Decay::kSqrt}),
           "Shape of the decay."),
       row("floor",
           &S::floor,
           codec::ratio(),
           "Share of optimizer.lr that the decay ends at; step `steps + 1` would reach it.")});
}

ConfigSection parallel() {
  using S = ParallelSection;
  return section(
      "parallel",
      &RunConfig::parallel,
      "How the ranks divide the work. data * tensor = ranks.",
      {row("ranks",
           &S::ranks,
           codec::size(),
           "Ranks of the run: threads of this process, or the processes that mpirun or srun "
           "started. Left out: what the launcher started, else parallel.data x parallel.tensor."),
       row("data",
           &S::data,
           codec::size(),
           "Parts of the batch. Left out: the ranks that the other degrees leave."),
       row("tensor",
           &S::tensor,
           codec::size(),
           "Parts of each layer's weights: heads, feed-forward and vocabulary. Divides "
           "model.heads and model.kv_heads."),
       row("sequence_parallel",
           &S::sequence_parallel,
           codec::boolean(),
           "The ranks that share a layer's weights also divide the sequence where no weight is "
           "cut: less memory, and a fifth to a quarter more bytes between them, since backward "
           "gathers "
           "again what forward did not keep.")});
}

ConfigSection state() {
  using S = StateSection;
  return section(
      "state",
      &RunConfig::state,
      "Over how many data ranks parameters, gradients and optimizer states are cut. A degree is a "
      "number of ranks or the name of a level of the cluster.",
      {row("preset",
           &S::preset,
           codec::text(),
           "\"ddp\", \"zero1\", \"zero2\", \"zero3\" or \"fsdp\", \"hsdp@LEVEL\" or "
           "\"mics@LEVEL\", which are one, \"shard-grad-op\", \"zeropp\", which needs a level "
           "\"node\", \"topo\", which needs levels \"pair\" and \"node\". With one data rank all "
           "are the same."),
       row("param", &S::param, codec::degree(), "Parameters at rest. Left out: the preset's."),
       row("secondary",
           &S::secondary,
           codec::degree(),
           "A second copy of the parameters, cut less than they are, from which most gathers "
           "read. As param: none. Left out: the preset's; with param alone: as param."),
       row("secondary_use",
           &S::secondary_use,
           codec::choice({SecondaryUse::kAll, SecondaryUse::kBackward}),
           "The gathers that the second copy serves: all, or those of backward alone, as ZeRO++ "
           "does."),
       row("grad",
           &S::grad,
           codec::degree(),
           "Gradients between microbatches. Left out: the preset's."),
       row("optimizer",
           &S::optimizer,
           codec::degree(),
           "Master weights and moments. Left out: the preset's."),
       row("wire_param",
           &S::wire_param,
           codec::text(),
           "How gathered parameters travel: \"full\", which is the compute dtype, or \"f32\", "
           "\"bf16\", \"int8\" or \"int4\", or one of these four for each level, innermost first, "
           "with "
           "spaces between (\"f32 bf16 int4\"). "
           "Left out: the preset's, which is int8 for zeropp and topo, else full."),
       row("wire_grad",
           &S::wire_grad,
           codec::text(),
           "The same for reduced gradients: int4 for zeropp and topo."),
       row("wire_update",
           &S::wire_update,
           codec::text(),
           "The same for updated parameters on their way from master weights that are cut more "
           "than they are. Left out: full."),
       row("wire_block",
           &S::wire_block,
           codec::between(2, 256),
           "Elements that share a scale in int8 and int4: a power of two.")});
}

ConfigSection comm() {
  using S = CommSection;
  return section("comm",
                 &RunConfig::comm,
                 "How ranks talk.",
                 {row("deadline_seconds",
                      &S::deadline_seconds,
                      codec::positive(),
                      "A rank that keeps the others waiting for longer ends the run."),
                  row("reduction",
                      &S::reduction,
                      codec::choice({Reduction::kOrdered, Reduction::kNative}),
                      "ordered: sums fold in the order of the ranks, the same on every layout and "
                      "machine. native: by NCCL, for ranks on GPUs of their own; sums repeat, in "
                      "an order of NCCL's. Left out: native where that can be, else ordered."),
                  row("overlap",
                      &S::overlap,
                      codec::boolean(),
                      "Move parameters and gradients beside the computation, on a thread of their "
                      "own. Results are bitwise the same."),
                  row("overlap_layers",
                      &S::overlap_layers,
                      codec::size(),
                      "How many layers that may be ahead of the computation or behind it: more "
                      "hides more and needs memory for as many layers.")});
}

ConfigSection cluster() {
  using S = ClusterSection;
  return section("cluster",
                 &RunConfig::cluster,
                 "The machine that the ranks run on.",
                 {row("file",
                      &S::file,
                      codec::path(),
                      "Cluster file (docs/formats.md): its levels order the ranks. \"local\": the "
                      "levels of this machine. Empty: the ranks are one level, \"local\".")});
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
                      "A plan that needs more on a rank is refused before it starts. 0: what the "
                      "machine has, divided among its ranks.")});
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
           "Steps between checkpoints, beside the one at the end. 0: none by steps."),
       row("every_minutes",
           &S::every_minutes,
           codec::not_negative(),
           "Minutes after which a step is saved where no checkpoint was made meanwhile, by rank "
           "0's "
           "clock; which step it is changes nothing else. 0: none by time, so that with every = 0 "
           "a "
           "run that is killed has nothing. Left out: 15 where every = 0, else 0."),
       row("keep",
           &S::keep,
           codec::size_or_zero(),
           "Newest checkpoints that stay on disk, once a step after the newest, or at the end of "
           "the run one that changes nothing, was finite; a run that is stopped or fails leaves "
           "the rest to the next start. 0: all."),
       row("keep_best",
           &S::keep_best,
           codec::boolean(),
           "Of the checkpoints at whose step the run validated, the one with the lowest loss stays "
           "on disk too; checkpoints/best links to it."),
       row("async",
           &S::async,
           codec::boolean(),
           "Write in the background, from a copy in the host's memory, while training goes on."),
       row("resume",
           &S::resume,
           codec::path(),
           "\"auto\": from the newest checkpoint in run.dir, if any. \"none\": from the "
           "start, which is refused where run.dir has a checkpoint. Else the path of a checkpoint, "
           "or of a run directory for its newest."),
       row("fall_back",
           &S::fall_back,
           codec::boolean(),
           "With resume = \"auto\": a newest checkpoint that is damaged is set aside as "
           "damaged-step-<number>, with a warning, and the run goes on from the newest that is "
           "whole. false, or a checkpoint that is named: an error."),
       row("deadline_seconds",
           &S::deadline_seconds,
           codec::positive(),
           "How long ranks wait for each other's disks while a checkpoint is written or loaded.")});
}

ConfigSection log() {
  using S = LogSection;
  return section("log",
                 &RunConfig::log,
                 "What is shown.",
                 {row("every",
                      &S::every,
                      codec::size(),
                      "Steps between progress lines where the output is not a terminal."),
                  row("tensorboard",
                      &S::tensorboard,
                      codec::boolean(),
                      "Write TensorBoard event files beside metrics.jsonl.")});
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
       row("gelu_products",
           &S::gelu_products,
           codec::boolean(),
           "On a GPU, apply gelu and its gradient within the products around it (cuBLASLt's "
           "epilogues, for bf16); changes the last bits."),
       row("dump",
           &S::dump,
           codec::path(),
           "Directory that receives the output of every pass as text. Empty: none.")});
}

}  // namespace

std::vector<ConfigSection> schema() {
  return {run(),
          model(),
          tokenizer(),
          data(),
          train(),
          validation(),
          lora(),
          float8(),
          optimizer(),
          schedule(),
          parallel(),
          state(),
          comm(),
          cluster(),
          memory(),
          checkpoint(),
          log(),
          sample(),
          passes()};
}

}  // namespace tessera
