#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "tessera/base/error.h"

namespace tessera {

enum class SaveStatus {
  kIdle,     // nothing is under way
  kWriting,  // this rank's files, in the background
  kWritten,  // this rank's part is durable; the checkpoint is not there yet
  kFailed,   // see error()
};

// The status of a save, which the thread that writes changes while others look at it.
class WatchedStatus {
 public:
  // `error` belongs to kFailed.
  void become(SaveStatus status, std::optional<Error> error = {});

  SaveStatus now() const;

  // The status once it is not kWriting.
  SaveStatus wait() const;

  // Why the write failed. Errors: kInvalidArgument unless kFailed.
  Error error() const;

 private:
  mutable std::mutex mutex_;  // of what follows
  mutable std::condition_variable changed_;
  SaveStatus status_ = SaveStatus::kIdle;
  std::optional<Error> error_;
};

}  // namespace tessera
