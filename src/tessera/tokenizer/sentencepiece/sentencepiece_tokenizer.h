#pragma once

#include <memory>
#include <string_view>

#include "tessera/tokenizer/tokenizer_impl.h"

namespace tessera {

// A SentencePiece model (the bytes of a .model file), BPE or unigram, run by libsentencepiece.
// Control symbols are special tokens; tokens that it is given beside its pieces
// (with_added_tokens()) are cut out of a text before it. Errors: kInvalidData if the library
// refuses the model, or an added token has the id of another piece.
std::shared_ptr<const TokenizerImpl> load_sentencepiece(std::string_view model);

}  // namespace tessera
