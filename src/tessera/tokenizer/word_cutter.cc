#include "tessera/tokenizer/word_cutter.h"

#include <algorithm>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/tokenizer/text_parts.h"

namespace tessera {
namespace {

// What a normalizer or pre-tokenizer makes of a space; empty if nothing else.
std::string mark_of_spaces(const TokenizerSpec& spec) {
  if (spec.metaspace) {
    return spec.metaspace->replacement;
  }
  const auto replacing = std::ranges::find_if(spec.normalizer, [](const NormalizerStep& step) {
    return step.kind == NormalizerStep::Kind::kReplace && step.from == " ";
  });
  return replacing == spec.normalizer.end() ? "" : replacing->to;
}

// Those that can cut anything: a space that the normalizer has replaced is in no text.
std::vector<Split> active_splits(const TokenizerSpec& spec) {
  std::vector<Split> splits = spec.splits;
  const bool no_spaces =
      !spec.normalizer.empty() && spec.normalizer.back().kind == NormalizerStep::Kind::kReplace &&
      spec.normalizer.back().from == " " && spec.normalizer.back().to == kSpaceSymbol;
  std::erase_if(splits, [&](const Split& split) {
    // Where nothing matches, what is removed is nothing, or all.
    return no_spaces && split.pattern == " " &&
           (split.behavior != SplitBehavior::kRemoved || !split.invert);
  });
  return splits;
}

// Whether no merge reaches over the place before a `mark` that does not follow another: text can
// then be cut there, and each word merged by itself, without changing a token.
bool merges_stop_before(const TokenizerSpec& spec, const std::string& mark) {
  if (mark.empty() || spec.ignore_merges ||
      std::ranges::find(spec.tokens, mark) == spec.tokens.end()) {
    return false;
  }
  return std::ranges::none_of(spec.merges, [&](const MergeRule& rule) {
    return spec.tokens[static_cast<std::size_t>(rule.right)].starts_with(mark) &&
           !spec.tokens[static_cast<std::size_t>(rule.left)].ends_with(mark);
  });
}

WordMark word_mark(const TokenizerSpec& spec) {
  if (spec.metaspace && spec.metaspace->split) {
    return {.text = spec.metaspace->replacement, .each = true};
  }
  const std::string mark = mark_of_spaces(spec);
  return merges_stop_before(spec, mark) ? WordMark{.text = mark} : WordMark{};
}

}  // namespace

WordCutter::WordCutter(const TokenizerSpec& spec)
    : alphabet_(spec.alphabet),
      metaspace_(spec.metaspace),
      pre_tokenizer_(active_splits(spec)),
      mark_(word_mark(spec)) {}

bool WordCutter::cuts_at_space_symbol_alone() const {
  return mark_.text == kSpaceSymbol && pre_tokenizer_.empty();
}

std::string WordCutter::with_metaspace(std::string_view text, StretchBegin begin) const {
  std::string result = replace_all(text, " ", metaspace_->replacement);
  const bool prepends =
      begin != StretchBegin::kInWord &&
      (metaspace_->prepend == Metaspace::Prepend::kAlways ||
       (metaspace_->prepend == Metaspace::Prepend::kFirst && begin == StretchBegin::kText));
  return prepends && !result.starts_with(metaspace_->replacement) ? metaspace_->replacement + result
                                                                  : result;
}

}  // namespace tessera
