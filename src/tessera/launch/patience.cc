#include "tessera/launch/patience.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kInterval(100);

// The largest of what the ranks say.
std::int64_t largest(Communicator& group, std::int64_t own) {
  const Elements elements = {
      .dtype = DType::kI64, .data = reinterpret_cast<std::byte*>(&own), .count = 1};
  group.all_reduce(Fold::kMax, elements, elements);
  return own;
}

}  // namespace

Patience::Patience(Communicator& group, std::string doing, double limit_seconds)
    : group_(group), doing_(std::move(doing)), limit_seconds_(limit_seconds) {
  if (group_.size() == 1) {
    return;
  }
  try {
    thread_.emplace([this] {
      try {
        tell();
      } catch (...) {
        failure_ = std::current_exception();
      }
    });
    // NOLINTNEXTLINE(bugprone-empty-catch): what follows is all that there is to do
  } catch (const std::system_error&) {
    // Without a thread this rank is heard of when it is done: others wait as for any collective.
  }
}

Patience::~Patience() {
  become(State::kGivenUp);
  if (thread_ && thread_->joinable()) {
    thread_->join();
  }
}

void Patience::wait() {
  become(State::kDone);
  if (thread_) {
    thread_->join();
  } else if (group_.size() > 1) {
    tell();
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

// All ranks go round as often: until none says that it is at it.
void Patience::tell() {
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t late = 0;
  do {
    State state{};
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kInterval, [&] { return state_ != State::kAtIt; });
      state = state_;
    }
    if (state == State::kGivenUp) {
      return;
    }
    late = largest(group_, state == State::kAtIt ? group_.rank() + 1 : 0);
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - begin;
    TESSERA_REQUIRE(late == 0 || since.count() < limit_seconds_,
                    ErrorCode::kTimeout,
                    "rank {} is still {} after {} s, the limit of checkpoint.deadline_seconds",
                    late - 1,
                    doing_,
                    limit_seconds_);
  } while (late > 0);
}

void Patience::become(State state) {
  const std::lock_guard lock(mutex_);
  state_ = state_ == State::kAtIt ? state : state_;
  changed_.notify_all();
}

}  // namespace tessera
