// A transfer is a header, with its size, and then its bytes in pieces. The sender's messages wait
// in MPI, or at the sender, until the receiver takes them; the receiver asks for the bytes once the
// header shows that both ends mean the same size.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mpi.h>

#include "tessera/base/error.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/channel_call.h"
#include "tessera/comm/mpi/mpi_check.h"
#include "tessera/comm/mpi/mpi_run.h"
#include "tessera/comm/mpi/requests.h"
#include "tessera/comm/wait_limit.h"

namespace tessera {
namespace {

// Small enough that each arrives well within the deadline.
constexpr std::size_t kPiece = std::size_t{32} << 20U;

class MpiChannel final : public Channel {
 public:
  MpiChannel(std::shared_ptr<MpiRun> run, const ChannelKey& key, std::int64_t generation)
      : run_(std::move(run)),
        call_{.channel = key, .sends = key.from == run_->rank(), .transfer = -1},
        ticket_(run_->announce(key, generation)),
        header_(sizeof(std::int64_t)) {}

  ~MpiChannel() override {
    give_up();
    run_->retire(ticket_);
  }

  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  void begin(std::span<std::byte> memory) override {
    TESSERA_CHECK(state_ == State::kIdle, "a transfer at an end where one is under way");
    memory_ = memory;
    ++call_.transfer;
    call_.bytes = static_cast<std::int64_t>(memory.size());
    state_ = State::kBegun;
    limit_.emplace(run_->options(), &run_->gossip());
  }

  bool advance() override {
    if (state_ == State::kIdle) {
      return true;
    }
    try {
      require_run();  // MPI may take what no receiver wants any more
      if (call_.sends ? send() : receive()) {
        state_ = State::kIdle;
        limit_.reset();
        return true;
      }
      run_->take_control_messages();
      require_run();
      require_time();
    } catch (...) {
      give_up();
      throw;
    }
    return false;
  }

  void withdraw() override { give_up(); }

 private:
  enum class State : std::uint8_t { kIdle, kBegun, kHeader, kBytes };

  static constexpr int kUnknown = -1;  // a tag that the peer has yet to tell

  bool send() {
    if (state_ == State::kBegun) {
      const int tag = run_->tag_of(ticket_, call_.peer()).value_or(kUnknown);
      if (tag == kUnknown) {
        return false;
      }
      std::memcpy(header_.data(), &call_.bytes, sizeof call_.bytes);
      post_send(header_, tag);
      for_each_piece([&](std::span<std::byte> piece) { post_send(piece, tag); });
      state_ = State::kBytes;
    }
    return are_done();
  }

  bool receive() {
    if (state_ == State::kBegun) {
      post_receive(header_);
      state_ = State::kHeader;
    }
    if (state_ == State::kHeader) {
      if (!are_done()) {
        return false;
      }
      require_equal_sizes();
      for_each_piece([&](std::span<std::byte> piece) { post_receive(piece); });
      state_ = State::kBytes;
    }
    return are_done();
  }

  bool are_done() {
    bool some = false;
    const bool all = requests_->test(some);
    if (some && limit_) {
      limit_->renew();
    }
    return all;
  }

  template <class Body>
  void for_each_piece(const Body& body) const {
    for (std::size_t begin = 0; begin < memory_.size(); begin += kPiece) {
      body(memory_.subspan(begin, std::min(kPiece, memory_.size() - begin)));
    }
  }

  void post_send(std::span<const std::byte> from, int tag) {
    check_mpi(MPI_Isend(from.data(),
                        static_cast<int>(from.size()),
                        MPI_BYTE,
                        static_cast<int>(call_.peer()),
                        tag,
                        run_->data(),
                        requests_->add(0, Requests::Kind::kSend)),
              "MPI_Isend");
  }

  void post_receive(std::span<std::byte> to) {
    check_mpi(MPI_Irecv(to.data(),
                        static_cast<int>(to.size()),
                        MPI_BYTE,
                        static_cast<int>(call_.peer()),
                        ticket_.tag,
                        run_->data(),
                        requests_->add(0, Requests::Kind::kReceive)),
              "MPI_Irecv");
  }

  void require_equal_sizes() const {
    std::int64_t sent = 0;
    std::memcpy(&sent, header_.data(), sizeof sent);
    if (sent != call_.bytes) {
      const std::string message = mismatch_message(call_, sent);
      run_->abort(message);
      fail(ErrorCode::kInternal, "{}", message);
    }
  }

  void require_run() const {
    if (run_->aborted()) {
      Error error(ErrorCode::kPeerFailure, run_->abort_reason());
      error.add_context(waiting_message(call_, own_place(), peer_place()));
      throw error;
    }
  }

  void require_time() {
    if (limit_ && limit_->is_over()) {
      const std::string message = late_message(call_, run_->options(), own_place(), peer_place());
      run_->abort(message);
      fail(ErrorCode::kTimeout, "{}", message);
    }
  }

  std::string own_place() const { return run_->gossip().own().place(); }

  std::string peer_place() const { return run_->gossip().place_of(call_.peer()); }

  // Nobody writes to this end's memory any more. MPI may go on reading what it sends.
  void give_up() {
    if (state_ != State::kIdle) {
      requests_.reset();  // takes back what can be
      requests_ = std::make_unique<Requests>();
      run_->keep(std::exchange(header_, std::vector<std::byte>(sizeof(std::int64_t))));
      state_ = State::kIdle;
    }
  }

  std::shared_ptr<MpiRun> run_;
  ChannelCall call_;
  MpiRun::Ticket ticket_;
  std::span<std::byte> memory_;
  State state_ = State::kIdle;
  std::vector<std::byte> header_;  // which MPI may be reading or writing
  std::unique_ptr<Requests> requests_ = std::make_unique<Requests>();
  std::optional<WaitLimit> limit_;  // of the transfer under way
};

}  // namespace

std::unique_ptr<Channel> make_mpi_channel(std::shared_ptr<MpiRun> run,
                                          const ChannelKey& key,
                                          std::int64_t generation) {
  require_channel_of(key, run->rank(), run->size());
  return std::make_unique<MpiChannel>(std::move(run), key, generation);
}

}  // namespace tessera
