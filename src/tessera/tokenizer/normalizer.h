#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Runs the steps of a normalizer. Bytes that are not valid UTF-8 stay as they are and belong to no
// character; Unicode forms are those of utf8proc's version of Unicode.
class Normalizer {
 public:
  explicit Normalizer(std::span<const NormalizerStep> steps) : steps_(steps.begin(), steps.end()) {}

  bool empty() const { return steps_.empty(); }

  // The normalized text: `text` itself where nothing changes, else a view of `memory`. Time is that
  // of n log n for n bytes, whatever they are.
  std::string_view run(std::string_view text, std::string& memory) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace tessera
