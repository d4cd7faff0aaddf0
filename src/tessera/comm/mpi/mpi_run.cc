#include "tessera/comm/mpi/mpi_run.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/comm/mpi/mpi_check.h"

namespace tessera {
namespace {

// Kinds of control messages, as tags.
constexpr int kHello = 0;
constexpr int kAbort = 1;
constexpr int kProgress = 2;

// Longer reasons are cut, so that MPI sends them without waiting for the receiver.
constexpr std::size_t kMaxReason = 2000;

struct Hello {
  std::uint64_t key = 0;
  std::int64_t tag = 0;
};

void start_mpi() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  TESSERA_REQUIRE(initialized == 0,
                  ErrorCode::kInvalidArgument,
                  "MPI runs already in this process: a process joins one run, once");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  TESSERA_REQUIRE(provided == MPI_THREAD_MULTIPLE,
                  ErrorCode::kUnsupported,
                  "this MPI library does not let several threads communicate (it provides level "
                  "{} where MPI_THREAD_MULTIPLE is {}): use one that is built with threads",
                  provided,
                  MPI_THREAD_MULTIPLE);
}

MPI_Comm duplicate_world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comm;
}

// Starts MPI, and returns a communicator of all ranks.
MPI_Comm start() {
  start_mpi();
  return duplicate_world();
}

std::int64_t rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

std::int64_t size_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

// The last that MPI allows.
std::int64_t last_tag_of(MPI_Comm comm) {
  constexpr std::int64_t kLeastTagUb = 32767;  // that the MPI standard promises
  int* last_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&last_tag), &found);
  return found != 0 ? *last_tag : kLeastTagUb;
}

}  // namespace

MpiRun::MpiRun(const MpiLaunch& launch, const WorldOptions& options)
    : options_(options),
      oversubscribed_(launch.local_size > usable_cores()),
      data_(start()),
      control_(duplicate_world()),
      rank_(rank_in(data_)),
      size_(size_of(data_)),
      tags_(last_tag_of(data_)),
      gossip_(options.deadline_seconds) {
  TESSERA_REQUIRE(rank_ == launch.rank && size_ == launch.size,
                  ErrorCode::kInvalidConfig,
                  "the launcher says rank {} of {}, {} says rank {} of {}: the launcher is of "
                  "another MPI library; name its own by TESSERA_MPI=openmpi or mpich",
                  launch.rank,
                  launch.size,
                  name(launch.library),
                  rank_,
                  size_);
}

MpiRun::Ticket MpiRun::announce(std::span<const std::int64_t> members, std::int64_t generation) {
  const Ticket ticket = tags_.choose(members, generation);
  for (const std::int64_t member : members) {
    if (member != rank_) {
      tell(ticket, member);
    }
  }
  // A chain through the group is enough: news is passed on.
  const auto own = std::ranges::find(members, rank_) - members.begin();
  std::vector<std::int64_t> beside;
  for (const std::ptrdiff_t place : {own - 1, own + 1}) {
    if (place >= 0 && place < std::ssize(members)) {
      beside.push_back(members[static_cast<std::size_t>(place)]);
    }
  }
  gossip_.add_neighbours(beside);
  return ticket;
}

MpiRun::Ticket MpiRun::announce(const ChannelKey& channel, std::int64_t generation) {
  constexpr std::int64_t kIsChannel = -1;  // which is no member of a group
  const std::array<std::int64_t, 4> name = {kIsChannel, channel.from, channel.to, channel.number};
  const std::int64_t peer = channel.from == rank_ ? channel.to : channel.from;
  const Ticket ticket = tags_.choose(name, generation);
  tell(ticket, peer);
  gossip_.add_peer(peer);
  return ticket;
}

void MpiRun::tell(const Ticket& ticket, std::int64_t peer) {
  const Hello hello = {.key = ticket.key, .tag = ticket.tag};
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  control_.send({.peer = peer, .kind = kHello, .bytes = {bytes.begin(), bytes.end()}});
}

void MpiRun::retire(const Ticket& ticket) {
  // Others may still send to a group of an aborted run.
  tags_.retire(ticket, /*reuse=*/!aborted_);
}

void MpiRun::take_control_messages() {
  // Where another thread is at it, its work is as good as this one's.
  const std::unique_lock lock(receiving_, std::try_to_lock);
  while (lock.owns_lock() && take_one_control_message()) {
  }
}

bool MpiRun::take_one_control_message() {
  const std::optional<ControlMessages::Message> message = control_.take();
  if (!message) {
    return false;
  }
  const std::vector<std::byte>& bytes = message->bytes;
  if (message->kind == kAbort) {
    end_with(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    return true;
  }
  if (message->kind == kProgress) {
    if (const auto news = gossip_.hear(message->peer, bytes)) {
      send(*news);
    }
    return true;
  }
  Hello hello;
  TESSERA_CHECK(bytes.size() == sizeof hello, "a control message of {} bytes", bytes.size());
  std::memcpy(&hello, bytes.data(), sizeof hello);
  tags_.learn(hello.key, message->peer, static_cast<int>(hello.tag));
  return true;
}

void MpiRun::exchange_progress() {
  take_control_messages();
  if (const auto news = gossip_.next()) {
    send(*news);
  }
}

void MpiRun::send(const Gossip::News& news) {
  for (const std::int64_t peer : news.peers) {
    control_.send({.peer = peer, .kind = kProgress, .bytes = news.bytes});
  }
}

void MpiRun::end_with(std::string_view reason) {
  const std::scoped_lock lock(mutex_);
  if (!aborted_) {
    reason_ = reason;
    aborted_ = true;
    bell_.ring();
  }
}

std::string MpiRun::abort_reason() {
  const std::scoped_lock lock(mutex_);
  return reason_;
}

void MpiRun::abort(std::string_view reason) {
  if (aborted_) {
    return;
  }
  end_with(reason);
  const auto bytes = std::as_bytes(std::span(reason.substr(0, kMaxReason)));
  for (std::int64_t peer = 0; peer < size_; ++peer) {
    try {
      if (peer != rank_) {
        control_.send({.peer = peer, .kind = kAbort, .bytes = {bytes.begin(), bytes.end()}});
      }
      // NOLINTNEXTLINE(bugprone-empty-catch): one that is gone needs no word, the others do
    } catch (const Error&) {
    }
  }
  Backoff backoff({.deadline_seconds = 1.0}, oversubscribed_);
  while (backoff.pause() && !control_.are_sent()) {
  }
}

void MpiRun::keep(std::vector<std::byte> memory) {
  const std::scoped_lock lock(mutex_);
  kept_.push_back(std::move(memory));
}

void MpiRun::finalize() {
  control_.finalize();
  check_mpi(MPI_Comm_free(&data_), "MPI_Comm_free");
  check_mpi(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace tessera
