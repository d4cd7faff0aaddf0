#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// Ends a text that arrives in pieces before the first stop string in it: the one that ends first,
// and of several the longest, however the text was cut. Holds back what may become part of one.
class StopFilter {
 public:
  // `stops` are not empty; none: all text passes. Where texts and stops are UTF-8, so is what comes
  // out.
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that became certain with `text`. Nothing more once stopped().
  std::string push(std::string_view text);

  // The end of the text: what was held back.
  std::string flush();

  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace tessera
