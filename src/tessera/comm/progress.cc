#include "tessera/comm/progress.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera {

void Progress::name_calls(std::vector<std::string> names) {
  const std::scoped_lock lock(mutex_);
  names_ = std::move(names);
}

std::string Progress::place() const {
  const std::uint64_t place = place_.load(std::memory_order_relaxed);
  if (place == 0) {
    return "before its first call";
  }
  const std::uint64_t call = place - 1;
  const std::scoped_lock lock(mutex_);
  return call < names_.size() ? format("at call {} ({})", call, names_[call])
                              : format("at call {}", call);
}

}  // namespace tessera
