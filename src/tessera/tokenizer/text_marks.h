#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class Tokenizer;

// The tokens that stand around texts. One convention holds wherever a text meets a model: `before`
// stands before a document, before a prompt and before the context of a scored ending; the first of
// `eos` stands after a document; any of `eos` ends what a model generates. A chat template writes
// its own in their place.
struct TextMarks {
  std::vector<std::int32_t> before = {};
  std::vector<std::int32_t> eos = {};
  std::optional<std::int32_t> bos =
      {};  // what is called BOS, whether it stands before texts or not
  std::vector<std::int32_t> after = {};  // what the tokenizer's own encode() puts after a text
  std::vector<std::string> notes = {};   // where files disagree, and what counts: a sentence each

  std::string chat_template = {};  // of its directory, in Jinja; empty: there is none

  // What a model is asked after where nothing else stands there, as by an empty prompt: `before`,
  // else BOS, else EOS. Empty where there is none of them.
  std::vector<std::int32_t> beginning() const;
};

// The marks of `tokenizer`, which lies in `directory`, as transformers would have them: named in
// tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json there, or
// in its folder hugging_face, where checkpoints keep these files; else the tokenizer's own.
// docs/formats.md has the order. Errors: kInvalidData naming file and key of what cannot be read.
TextMarks read_text_marks(const std::filesystem::path& directory, const Tokenizer& tokenizer);

// Marks by the names of tokens; what is not there stays as it is.
struct MarkNames {
  std::optional<std::vector<std::string>> bos = {};
  std::optional<std::vector<std::string>> eos = {};
};

// `tokenizer` with these marks. `prefix` is in front of "bos" and "eos" in what sets them:
// "tokenizer." or "--". Errors: kInvalidConfig for a name that is no token's
// or whose id is beyond Tokenizer::within().
Tokenizer with_named_marks(const Tokenizer& tokenizer,
                           const MarkNames& names,
                           std::string_view prefix);

// The names of its marks, all there.
MarkNames names_of_marks(const Tokenizer& tokenizer);

// "<s> before each, </s> after it", "no token around them": what documents get, for people.
std::string describe_marks(const Tokenizer& tokenizer);

}  // namespace tessera
