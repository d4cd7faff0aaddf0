#pragma once

#include <string>
#include <string_view>

namespace tessera {

// What a SentencePiece model says of how it makes pieces of a text, which the library does not
// tell.
struct ModelFacts {
  bool is_bpe = false;
  bool whitespace_is_suffix = false;
  std::string rules;  // the name of its normalization
  bool has_rules = false;
  bool adds_prefix = true;  // a space in front of a text
  bool removes_extra_spaces = true;
  bool escapes_spaces = true;
};

// Reads them in the bytes of a model that the library has read.
ModelFacts read_model_facts(std::string_view model);

// A model with tokens that files beside it add, a JSON array: in a field that only Tessera knows
// and the library passes over, so that one file holds all.
std::string with_added_tokens(std::string_view model, std::string_view added);

// The added tokens of such a model; empty: it has none.
std::string added_tokens_of(std::string_view model);

// The model without them.
std::string without_added_tokens(std::string_view model);

// The same model, which puts no space in front of a text.
std::string without_prefix(std::string_view model);

}  // namespace tessera
