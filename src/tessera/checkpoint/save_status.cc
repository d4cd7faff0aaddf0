#include "tessera/checkpoint/save_status.h"

#include <utility>

namespace tessera {

void WatchedStatus::become(SaveStatus status, std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  status_ = status;
  error_ = std::move(error);
  changed_.notify_all();
}

SaveStatus WatchedStatus::now() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

SaveStatus WatchedStatus::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return status_ != SaveStatus::kWriting; });
  return status_;
}

Error WatchedStatus::error() const {
  const std::lock_guard lock(mutex_);
  TESSERA_REQUIRE(error_, ErrorCode::kInvalidArgument, "no save has failed");
  return *error_;
}

}  // namespace tessera
