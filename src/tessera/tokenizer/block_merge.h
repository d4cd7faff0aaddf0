#pragma once

#include <string_view>

#include "tessera/tokenizer/bpe_model.h"
#include "tessera/tokenizer/merge_symbols.h"
#include "tessera/tokenizer/tokenizer_impl.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Whether long words may be merged in blocks: each token of a word says which bytes of it it stands
// for.
bool merges_in_blocks(const TokenizerSpec& spec);

// Appends the tokens of a word of more than kPartBytes, as model.merge_word() would: in blocks,
// because what the merges take is many times the word. Requires merges_in_blocks(spec); `model` is
// that of `spec`.
void merge_in_blocks(const TokenizerSpec& spec,
                     const BpeModel& model,
                     std::string_view word,
                     MergeScratch& scratch,
                     const TokenOutput& out);

}  // namespace tessera
