#include "tessera/tokenizer/bpe_model.h"

namespace tessera {

BpeModel::BpeModel(const TokenizerSpec& spec)
    : symbols_(spec), merges_(spec.merges, spec.merges_by_result) {
  if (!spec.ignore_merges) {
    return;
  }
  const std::vector<bool> added = are_added(spec);
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    if (!added[i]) {
      whole_words_.emplace(spec.tokens[i], static_cast<std::int32_t>(i));
    }
  }
}

void BpeModel::encode_word(std::string_view word,
                           MergeScratch& scratch,
                           std::vector<std::int32_t>& out) const {
  if (!whole_words_.empty()) {
    if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  merge_word(word, scratch, out);
}

void BpeModel::merge_word(std::string_view word,
                          MergeScratch& scratch,
                          std::vector<std::int32_t>& out) const {
  scratch.symbols.clear();
  symbols_.split(word, scratch.symbols);
  merge_symbols(merges_, scratch, out);
}

}  // namespace tessera
