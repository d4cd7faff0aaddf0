#include "tessera/comm/local/local_channel.h"

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/channel_call.h"
#include "tessera/comm/wait_limit.h"

namespace tessera {
namespace {

// What both ends do alike: they count transfers, and give up.
class LocalEnd : public Channel {
 protected:
  LocalEnd(std::shared_ptr<LocalConnection> connection, bool sends)
      : connection_(std::move(connection)),
        call_{.channel = connection_->key,
              .sends = sends,
              .transfer = connection_->receiver.taken - 1} {}

  LocalConnection& connection() { return *connection_; }

  LocalRun& run() { return *connection_->run; }

  const ChannelCall& call() const { return call_; }

  bool is_under_way() const { return limit_.has_value(); }

  // Transfers with this one.
  std::int64_t count() const { return call_.transfer + 1; }

  void start(std::size_t bytes) {
    TESSERA_CHECK(!is_under_way(), "a transfer at an end where one is under way");
    ++call_.transfer;
    call_.bytes = static_cast<std::int64_t>(bytes);
    limit_.emplace(run().options(), &run());
  }

  void finish() { limit_.reset(); }

  // Throws unless the wait may go on.
  void require_run() {
    if (run().aborted()) {
      Error error(ErrorCode::kPeerFailure, run().abort_reason());
      error.add_context(waiting_message(call_, own_place(), peer_place()));
      release();
      throw error;
    }
  }

  void require_time() {
    if (limit_ && limit_->is_over()) {
      const std::string message = late_message(call_, run().options(), own_place(), peer_place());
      run().abort(message);
      release();
      fail(ErrorCode::kTimeout, "{}", message);
    }
  }

 private:
  // Nobody uses this end's memory any more when it returns; the run is aborted.
  virtual void release() = 0;

  std::string own_place() { return run().progress(call_.rank()).place(); }

  std::string peer_place() { return run().progress(call_.peer()).place(); }

  std::shared_ptr<LocalConnection> connection_;
  ChannelCall call_;
  std::optional<WaitLimit> limit_;  // of the transfer under way
};

class LocalSender final : public LocalEnd {
 public:
  LocalSender(std::shared_ptr<LocalConnection> connection, const Mover& mover)
      : LocalEnd(std::move(connection), /*sends=*/true), mover_(mover) {
    LocalConnection& shared = this->connection();
    shared.sender.shown = shared.receiver.taken.load();  // not what an end before this one has left
    shared.sender.withdrawn = false;
  }

  LocalSender(const LocalSender&) = delete;
  LocalSender& operator=(const LocalSender&) = delete;

  ~LocalSender() override { release(); }

  void withdraw() override { release(); }

  void begin(std::span<std::byte> memory) override {
    mover_.finish();
    start(memory.size());
    LocalConnection::Sender& own = connection().sender;
    own.memory = memory;
    if (connection().pace) {
      own.begun = Clock::now();
    }
    own.shown = count();
    run().bell(call().peer()).ring();
  }

  bool advance() override {
    if (is_under_way()) {
      if (connection().receiver.taken < count()) {
        require_run();
        if (connection().receiver.copied < count()) {
          require_time();
        }
        return false;
      }
      finish();
    }
    return true;
  }

 private:
  // A receiver that has not seen this says that it reads.
  void release() override {
    connection().sender.withdrawn = true;
    while (connection().receiver.reading) {
      std::this_thread::yield();
    }
  }

  const Mover& mover_;
};

class LocalReceiver final : public LocalEnd {
 public:
  LocalReceiver(std::shared_ptr<LocalConnection> connection, const Mover& mover)
      : LocalEnd(std::move(connection), /*sends=*/false), mover_(mover) {}

  void begin(std::span<std::byte> memory) override {
    mover_.finish();
    start(memory.size());
    memory_ = memory;
    if (connection().pace) {
      begun_ = Clock::now();
    }
  }

  bool advance() override {
    if (!is_under_way()) {
      return true;
    }
    if (!is_copied_ && !copy()) {
      require_run();
      require_time();
      return false;
    }
    if (due_ && Clock::now() < *due_) {
      require_run();
      return false;
    }
    is_copied_ = false;
    due_.reset();
    connection().receiver.taken = count();
    run().bell(call().peer()).ring();
    finish();
    return true;
  }

  std::optional<Clock::time_point> due() const override { return due_; }

  void withdraw() override {}

 private:
  // While one lives, the sender's end does not go.
  class Reading {
   public:
    explicit Reading(std::atomic<bool>& flag) : flag_(flag) { flag_ = true; }

    ~Reading() { flag_ = false; }

    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    std::atomic<bool>& flag_;
  };

  // Nobody else writes this end's memory.
  void release() override {}

  // In this order: a sender's end that takes over from another one first hides what that has shown.
  bool is_shown() {
    const LocalConnection::Sender& sender = connection().sender;
    return !sender.withdrawn && sender.shown >= count();
  }

  // Whether the sender is there.
  bool copy() {
    LocalConnection& shared = connection();
    if (!is_shown()) {
      return false;
    }
    const Reading reading(shared.receiver.reading);
    if (!is_shown() || run().aborted()) {  // before the sender could see that this end reads
      return false;
    }
    require_equal_sizes();
    try {
      mover_.copy(shared.sender.memory.data(), memory_);
    } catch (...) {
      mover_.finish();
      throw;
    }
    mover_.finish();
    is_copied_ = true;
    shared.receiver.copied = count();
    if (shared.pace) {
      due_ = run().links().take(*shared.pace,
                                shared.key.from,
                                shared.key.to,
                                call().bytes,
                                std::max(shared.sender.begun, begun_));
    }
    return true;
  }

  void require_equal_sizes() {
    const std::size_t sent = connection().sender.memory.size();
    if (sent != memory_.size()) {
      const std::string message = mismatch_message(call(), static_cast<std::int64_t>(sent));
      run().abort(message);
      fail(ErrorCode::kInternal, "{}", message);
    }
  }

  const Mover& mover_;
  std::span<std::byte> memory_;
  Clock::time_point begun_;
  bool is_copied_ = false;
  std::optional<Clock::time_point> due_;  // of what is copied
};

std::optional<Pace> pace_between(const LocalRun& run, const ChannelKey& key) {
  return pace_of(run.throttle(), std::array{key.from, key.to});
}

}  // namespace

LocalConnection::LocalConnection(std::shared_ptr<LocalRun> run_of_all,
                                 const ChannelKey& channel_key)
    : run(std::move(run_of_all)), key(channel_key), pace(pace_between(*run, key)) {}

std::unique_ptr<Channel> make_local_channel(std::shared_ptr<LocalConnection> connection,
                                            std::int64_t rank,
                                            const Mover& mover) {
  if (rank == connection->key.from) {
    return std::make_unique<LocalSender>(std::move(connection), mover);
  }
  return std::make_unique<LocalReceiver>(std::move(connection), mover);
}

}  // namespace tessera
