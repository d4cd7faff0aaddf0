#include "tessera/runtime/launcher.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/direct_file.h"
#include "tessera/comm/local/local_world.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// How long ranks may take to end after one has failed: what computes finds out when it next waits
// for the others, what hangs never does.
double grace_seconds(const WorldOptions& options) {
  return std::clamp(options.patience_seconds() / 4, 1.0, 5.0);
}

// What the others are told.
std::string aborted_by(std::int64_t rank, const Error& error) {
  return format("rank {} failed: {}", rank, error.what());
}

// The ranks of a run and what has become of them.
class Ranks {
 public:
  Ranks(std::int64_t num_ranks, const LaunchOptions& options)
      : options_(options),
        world_(num_ranks, options.world, options.throttle),
        running_(num_ranks) {}

  void run(const std::function<void(World&)>& body) {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(world_.num_ranks()));
    try {
      for (std::int64_t rank = 0; rank < world_.num_ranks(); ++rank) {
        threads.emplace_back([&, rank] { run_rank(rank, body); });
      }
    } catch (const std::system_error& error) {
      miss_from(std::ssize(threads), error);
    }
    wait();
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (failed_) {
      throw failure();
    }
  }

 private:
  void run_rank(std::int64_t rank, const std::function<void(World&)>& body) {
    {
      const std::unique_ptr<World> self = world_.join(rank);
      try {
        body(*self);
      } catch (...) {
        note(rank, to_error(std::current_exception()), *self);
      }
    }
    const std::scoped_lock lock(mutex_);
    --running_;
    changed_.notify_all();
  }

  // The ranks from `first` on have no thread: those before wait for them in vain.
  void miss_from(std::int64_t first, const std::system_error& error) {
    {
      const std::scoped_lock lock(mutex_);
      running_ -= world_.num_ranks() - first;
    }
    note(
        first,
        Error(ErrorCode::kDeviceError,
              format("the system gives no thread for it: {}: see `ulimit -u` and the limits of the "
                     "job's control group",
                     error.code().message())),
        *world_.join(first));
  }

  void note(std::int64_t rank, const Error& error, World& world) {
    {
      const std::scoped_lock lock(mutex_);
      std::optional<Error>& kept =
          error.code() == ErrorCode::kPeerFailure ? peer_failure_ : first_error_;
      if (!kept) {
        kept = rank_failure(rank, error);
      }
      failed_ = true;
      changed_.notify_all();
    }
    world.abort(aborted_by(rank, error));
  }

  // What went wrong, and where that left a rank that waited for the one that failed; a rank that
  // waited in vain has said so.
  Error failure() const {
    Error error = first_error_ ? *first_error_ : *peer_failure_;
    if (first_error_ && peer_failure_ && error.code() != ErrorCode::kTimeout) {
      std::string meanwhile;
      for (const std::string& place : peer_failure_->context()) {
        meanwhile = meanwhile.empty() ? place : format("{}, {}", place, meanwhile);
      }
      error.add_context("meanwhile " + meanwhile);
    }
    return error;
  }

  // Returns when no rank runs any more.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failed_ || running_ == 0; });
    Clock::time_point since = Clock::now();
    std::uint64_t written = bytes_written();
    while (running_ > 0) {
      const bool saving = options_.saving != nullptr && options_.saving();
      const double grace = saving ? options_.world.deadline_seconds : grace_seconds(options_.world);
      if (std::chrono::duration<double>(Clock::now() - since).count() >= grace) {
        break;
      }
      changed_.wait_for(lock, std::chrono::milliseconds(100));  // somebody may ask to stop
      if (written != bytes_written()) {
        written = bytes_written();
        since = Clock::now();
      }
    }
    if (running_ > 0) {
      give_up(failure());
    }
  }

  [[noreturn]] void give_up(const Error& error) const {
    if (options_.on_stuck) {
      options_.on_stuck(error);
    }
    std::fflush(nullptr);
    // Not exit(): threads that still run use what it would destroy.
    std::_Exit(exit_code(error.code()));
  }

  const LaunchOptions& options_;
  LocalWorld world_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::int64_t running_;
  bool failed_ = false;
  std::optional<Error> first_error_;
  std::optional<Error> peer_failure_;  // of a rank that failed because another did
};

}  // namespace

Error rank_failure(std::int64_t rank, const Error& error) {
  Error failure =
      error.code() == ErrorCode::kInternal ? Error(ErrorCode::kPeerFailure, error.what()) : error;
  failure.add_context(format("rank {}", rank));
  return failure;
}

void run_as_rank(World& world, const std::function<void(World&)>& body) {
  try {
    body(world);
  } catch (...) {
    const Error error = to_error(std::current_exception());
    world.abort(aborted_by(world.rank(), error));
    throw rank_failure(world.rank(), error);
  }
}

void launch_ranks(std::int64_t num_ranks,
                  const LaunchOptions& options,
                  const std::function<void(World&)>& body) {
  if (num_ranks == 1) {
    LocalWorld world(1, options.world, options.throttle);
    body(*world.join(0));
    return;
  }
  Ranks(num_ranks, options).run(body);
}

}  // namespace tessera
