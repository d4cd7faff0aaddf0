#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/config/codec.h"
#include "tessera/config/run_config.h"
#include "tessera/config/schema_rows.h"
#include "tessera/config/schema_sections.h"
#include "tessera/models/family.h"
#include "tessera/models/hugging_face_config.h"
#include "tessera/models/model_keys.h"

namespace tessera {
namespace {

using codec::Codec;
using schema_rows::Row;
using schema_rows::row;
using schema_rows::section;
using schema_rows::table_row;

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

}  // namespace

std::vector<ConfigSection> input_sections() {
  return {run(), model(), tokenizer(), data()};
}

}  // namespace tessera
