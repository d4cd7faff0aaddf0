#include "tessera/comm/mpi/mpi_run.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"

namespace tessera {
namespace {

// Kinds of control messages, as tags.
constexpr int kHello = 0;
constexpr int kAbort = 1;

// Longer reasons are cut, so that MPI sends them without waiting for the receiver.
constexpr std::size_t kMaxReason = 2000;

struct Hello {
  std::uint64_t key = 0;
  std::int64_t tag = 0;
};

// A number that is another one for other words, as good as certainly (splitmix64's mixing).
std::uint64_t mixed(std::uint64_t state, std::int64_t word) {
  std::uint64_t z = state + 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(word);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

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

}  // namespace

void check_mpi(int result, const char* function) {
  if (result == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  fail(ErrorCode::kPeerFailure,
       "{}: {}",
       function,
       std::string_view(text.data(), static_cast<std::size_t>(length)));
}

Patience::Patience(const WorldOptions& options, bool oversubscribed)
    : options_(options), oversubscribed_(oversubscribed), start_(Clock::now()) {}

void Patience::renew() {
  steps_ = 0;
  start_ = Clock::now();
}

bool Patience::pause() {
  constexpr std::int64_t kSpins = 2000;
  constexpr std::int64_t kYields = 20'000;
  ++steps_;
  if (steps_ < kSpins && !oversubscribed_) {
    return true;
  }
  if (steps_ < kYields) {
    std::this_thread::yield();
  } else {
    const std::int64_t naps = steps_ - kYields;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min<std::int64_t>(20 + naps, 500)));
  }
  constexpr std::int64_t kLooksAtClock = 64;
  if (steps_ < kYields && steps_ % kLooksAtClock != 0) {
    return true;
  }
  return std::chrono::duration<double>(Clock::now() - start_).count() < options_.patience_seconds();
}

MpiRun::MpiRun(const MpiLaunch& launch, const WorldOptions& options)
    : options_(options), oversubscribed_(launch.local_size > usable_cores()) {
  start_mpi();
  data_ = duplicate_world();
  control_ = duplicate_world();
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(data_, &rank);
  MPI_Comm_size(data_, &size);
  rank_ = rank;
  size_ = size;
  TESSERA_REQUIRE(rank_ == launch.rank && size_ == launch.size,
                  ErrorCode::kInvalidConfig,
                  "the launcher says rank {} of {}, {} says rank {} of {}: the launcher is of "
                  "another MPI library; name its own by TESSERA_MPI=openmpi or mpich",
                  launch.rank,
                  launch.size,
                  name(launch.library),
                  rank_,
                  size_);
  int* last_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(data_, MPI_TAG_UB, static_cast<void*>(&last_tag), &found);
  constexpr std::int64_t kLeastTagUb = 32767;  // that the MPI standard promises
  last_tag_ = found != 0 ? *last_tag : kLeastTagUb;
}

// What cannot be sent, to a peer that is gone, is not under way either.
bool MpiRun::Outgoing::is_done() {
  int done = 0;
  return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
}

MpiRun::Ticket MpiRun::announce(std::span<const std::int64_t> members, std::int64_t generation) {
  Ticket ticket;
  {
    const std::scoped_lock lock(mutex_);
    const std::vector<std::int64_t> list(members.begin(), members.end());
    ticket.key = mixed(mixed(0, generation), made_[{list, generation}]++);
    for (const std::int64_t member : members) {
      ticket.key = mixed(ticket.key, member);
    }
    if (free_tags_.empty()) {
      TESSERA_REQUIRE(next_tag_ <= last_tag_,
                      ErrorCode::kUnsupported,
                      "more than {} groups at a time: this MPI library has no more tags",
                      last_tag_ + 1);
      free_tags_.push_back(next_tag_++);
    }
    ticket.tag = free_tags_.back();
    free_tags_.pop_back();
  }
  const Hello hello = {.key = ticket.key, .tag = ticket.tag};
  for (const std::int64_t member : members) {
    if (member != rank_) {
      const auto bytes = std::as_bytes(std::span(&hello, 1));
      send_control(member, kHello, {bytes.begin(), bytes.end()});
    }
  }
  return ticket;
}

void MpiRun::retire(const Ticket& ticket) {
  const std::scoped_lock lock(mutex_);
  tags_.erase(tags_.lower_bound({ticket.key, -1}), tags_.upper_bound({ticket.key, size_}));
  // Others may still send to a group of an aborted run.
  if (!aborted_) {
    free_tags_.push_back(ticket.tag);
  }
}

std::optional<int> MpiRun::tag_of(const Ticket& ticket, std::int64_t peer) {
  const std::scoped_lock lock(mutex_);
  const auto found = tags_.find({ticket.key, peer});
  return found == tags_.end() ? std::nullopt : std::optional<int>(found->second);
}

void MpiRun::send_control(std::int64_t peer, int kind, std::vector<std::byte> bytes) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(outgoing_, [](Outgoing& each) { return each.is_done(); });
  Outgoing& message = outgoing_.emplace_back();
  message.bytes = std::move(bytes);
  // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): a later call tests the request
  check_mpi(MPI_Isend(message.bytes.data(),
                      static_cast<int>(message.bytes.size()),
                      MPI_BYTE,
                      static_cast<int>(peer),
                      kind,
                      control_,
                      &message.request),
            "MPI_Isend");
}

void MpiRun::take_control_messages() {
  // Where another thread is at it, its work is as good as this one's.
  const std::unique_lock lock(receiving_, std::try_to_lock);
  while (lock.owns_lock() && take_one_control_message()) {
  }
}

bool MpiRun::take_one_control_message() {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, control_, &found, &message, &status),
            "MPI_Improbe");
  if (found == 0) {
    return false;
  }
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  check_mpi(MPI_Mrecv(bytes.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
  if (status.MPI_TAG == kAbort) {
    end_with(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    return true;
  }
  Hello hello;
  TESSERA_CHECK(bytes.size() == sizeof hello, "a control message of {} bytes", bytes.size());
  std::memcpy(&hello, bytes.data(), sizeof hello);
  const std::scoped_lock lock(mutex_);
  tags_[{hello.key, status.MPI_SOURCE}] = static_cast<int>(hello.tag);
  return true;
}

void MpiRun::end_with(std::string_view reason) {
  const std::scoped_lock lock(mutex_);
  if (!aborted_) {
    reason_ = reason;
    aborted_ = true;
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
        send_control(peer, kAbort, {bytes.begin(), bytes.end()});
      }
      // NOLINTNEXTLINE(bugprone-empty-catch): one that is gone needs no word, the others do
    } catch (const Error&) {
    }
  }
  Patience patience({.deadline_seconds = 1.0}, oversubscribed_);
  while (patience.pause()) {
    const std::scoped_lock lock(mutex_);
    const bool sent = std::ranges::all_of(outgoing_, [](Outgoing& each) { return each.is_done(); });
    if (sent) {
      return;
    }
  }
}

void MpiRun::keep(std::vector<std::byte> memory) {
  const std::scoped_lock lock(mutex_);
  kept_.push_back(std::move(memory));
}

void MpiRun::finalize() {
  const std::scoped_lock lock(mutex_);
  for (Outgoing& each : outgoing_) {
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): of an earlier send_control()
    check_mpi(MPI_Wait(&each.request, MPI_STATUS_IGNORE), "MPI_Wait");
  }
  outgoing_.clear();
  check_mpi(MPI_Comm_free(&control_), "MPI_Comm_free");
  check_mpi(MPI_Comm_free(&data_), "MPI_Comm_free");
  check_mpi(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace tessera
