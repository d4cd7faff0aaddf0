#include "tessera/comm/mpi/requests.h"

#include "tessera/base/error.h"
#include "tessera/comm/mpi/mpi_check.h"

namespace tessera {

Requests::~Requests() {
  constexpr double kSeconds = 0.2;
  try {
    withdraw({{.deadline_seconds = kSeconds}, true});
    // NOLINTNEXTLINE(bugprone-empty-catch): the error that led here says more
  } catch (const Error&) {
  }
}

MPI_Request* Requests::add(std::size_t peer, Kind kind) {
  messages_.push_back({.peer = peer, .kind = kind});
  return &handles_.emplace_back(MPI_REQUEST_NULL);
}

bool Requests::test(bool& some) {
  if (handles_.empty()) {
    return true;
  }
  int count = 0;
  done_.resize(handles_.size());
  check_mpi(MPI_Testsome(static_cast<int>(handles_.size()),
                         handles_.data(),
                         &count,
                         done_.data(),
                         MPI_STATUSES_IGNORE),
            "MPI_Testsome");
  some = count != MPI_UNDEFINED && count > 0;
  const bool all = count == MPI_UNDEFINED || (some && !any([](const Message&) { return true; }));
  if (all) {
    handles_.clear();
    messages_.clear();
  }
  return all;
}

bool Requests::waits_for(std::size_t peer) const {
  return any([&](const Message& message) { return message.peer == peer; });
}

void Requests::withdraw(Backoff backoff) {
  const auto is_receive = [](const Message& message) { return message.kind == Kind::kReceive; };
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (is_receive(messages_[i]) && handles_[i] != MPI_REQUEST_NULL) {
      MPI_Cancel(&handles_[i]);
    }
  }
  bool some = false;
  while (any(is_receive) && !test(some) && backoff.pause()) {
  }
}

}  // namespace tessera
