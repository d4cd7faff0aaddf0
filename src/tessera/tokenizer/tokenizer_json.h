#pragma once

#include <string>
#include <string_view>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Reads the text of a Hugging Face tokenizer.json with a BPE model: over the byte-level alphabet,
// or over characters as SentencePiece makes them (docs/formats.md lists what is known). Errors name
// the place as a JSON pointer ("/model/merges/17"), what was found and what was expected:
// kInvalidData if the text is broken or contradicts itself, kUnsupported if it asks for something
// that would change results and does not exist here.
TokenizerSpec parse_tokenizer_json(std::string_view text);

// The text of a tokenizer.json that parses back to `spec` and that Hugging Face loads.
std::string format_tokenizer_json(const TokenizerSpec& spec);

// The post-processor that puts `bos` before a text, as Llama 3's file does.
std::string bos_post_processor(const AddedToken& bos);

}  // namespace tessera
