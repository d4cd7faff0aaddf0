#include "tessera/comm/progress.h"

#include "tessera/base/error.h"

namespace tessera {

std::size_t Progress::add_calls(const std::vector<std::string>& names) {
  const std::scoped_lock lock(mutex_);
  const std::size_t first = names_.size();
  for (const std::string& each : names) {
    names_.push_back(format("call {} ({})", names_.size() - first, each));
  }
  return first;
}

std::string Progress::place() const {
  const std::uint64_t place = place_.load(std::memory_order_relaxed);
  if (place == 0) {
    return "before its first call";
  }
  const std::uint64_t call = place - 1;
  const std::scoped_lock lock(mutex_);
  return call < names_.size() ? format("at {}", names_[call]) : format("at call {}", call);
}

}  // namespace tessera
