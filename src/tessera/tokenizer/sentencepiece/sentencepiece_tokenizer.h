#pragma once

#include <memory>
#include <string_view>

#include "tessera/tokenizer/tokenizer_impl.h"

namespace tessera {

// A SentencePiece model (the bytes of a .model file), BPE or unigram, run by libsentencepiece.
// Control symbols are special tokens. Errors: kInvalidData if the library refuses the model.
std::shared_ptr<const TokenizerImpl> load_sentencepiece(std::string_view model);

}  // namespace tessera
