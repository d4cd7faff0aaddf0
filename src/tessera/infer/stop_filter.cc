#include "tessera/infer/stop_filter.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tessera {
namespace {

// Bytes of the longest end of `text` that begins `stop`, which is not in it whole.
std::size_t begun(std::string_view text, std::string_view stop) {
  std::size_t size = std::min(text.size(), stop.size() - 1);
  while (!text.ends_with(stop.substr(0, size))) {
    --size;
  }
  return size;
}

}  // namespace

std::string StopFilter::push(std::string_view text) {
  if (stopped_) {
    return {};
  }
  pending_ += text;
  std::size_t begin = std::string::npos;
  std::size_t end = std::string::npos;
  std::size_t held = 0;
  for (const std::string& stop : stops_) {
    const std::size_t found = pending_.find(stop);
    if (found == std::string::npos) {
      held = std::max(held, begun(pending_, stop));
    } else if (found + stop.size() < end || (found + stop.size() == end && found < begin)) {
      begin = found;
      end = found + stop.size();
    }
  }
  stopped_ = begin != std::string::npos;
  std::string certain = pending_.substr(0, stopped_ ? begin : pending_.size() - held);
  pending_.erase(0, stopped_ ? std::string::npos : certain.size());
  return certain;
}

std::string StopFilter::flush() {
  return std::exchange(pending_, {});
}

}  // namespace tessera
