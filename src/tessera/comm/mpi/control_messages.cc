#include "tessera/comm/mpi/control_messages.h"

#include <algorithm>
#include <utility>

#include "tessera/comm/mpi/mpi_check.h"

namespace tessera {

bool ControlMessages::Outgoing::is_done() {
  int done = 0;
  return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
}

void ControlMessages::send(Message message) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(outgoing_, [](Outgoing& each) { return each.is_done(); });
  Outgoing& outgoing = outgoing_.emplace_back();
  outgoing.bytes = std::move(message.bytes);
  // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): a later call tests the request
  check_mpi(MPI_Isend(outgoing.bytes.data(),
                      static_cast<int>(outgoing.bytes.size()),
                      MPI_BYTE,
                      static_cast<int>(message.peer),
                      message.kind,
                      comm_,
                      &outgoing.request),
            "MPI_Isend");
}

std::optional<ControlMessages::Message> ControlMessages::take() {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, &message, &status),
            "MPI_Improbe");
  if (found == 0) {
    return std::nullopt;
  }
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  check_mpi(MPI_Mrecv(bytes.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
  return Message{.peer = status.MPI_SOURCE, .kind = status.MPI_TAG, .bytes = std::move(bytes)};
}

bool ControlMessages::are_sent() {
  const std::scoped_lock lock(mutex_);
  return std::ranges::all_of(outgoing_, [](Outgoing& each) { return each.is_done(); });
}

void ControlMessages::finalize() {
  const std::scoped_lock lock(mutex_);
  for (Outgoing& each : outgoing_) {
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): of an earlier send()
    check_mpi(MPI_Wait(&each.request, MPI_STATUS_IGNORE), "MPI_Wait");
  }
  outgoing_.clear();
  check_mpi(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

}  // namespace tessera
