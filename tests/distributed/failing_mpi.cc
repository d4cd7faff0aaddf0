// An MPI library that fails where a test says so, as one does whose peer or network is gone.
// Preloaded into a rank, it takes some calls before the true library does (the standard's profiling
// interface: PMPI_X is what MPI_X does).

#include "tests/distributed/failing_mpi.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <thread>

#include <mpi.h>

namespace tessera {
namespace {

// Set and read by the one thread of a rank that sends.
struct Fault {
  int peer = -1;
  int passing = 0;
  std::optional<double> delay_seconds = {};  // else the send fails
};

Fault& fault() {
  static Fault the_fault;
  return the_fault;
}

bool strikes(int peer) {
  return peer == fault().peer && --fault().passing < 0;
}

// Sends of this rank that fail, counted from 0.
struct Failing {
  int first = 0;
  int count = 0;
};

// Whether the environment says that this send fails. Any thread asks.
bool is_cut_off() {
  static const Failing kFailing = [] {
    const char* const text = std::getenv(kFailingSends);
    int of_rank = -1;
    int rank = -1;
    Failing said = {.first = 0, .count = std::numeric_limits<int>::max()};
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const bool is_said =
        text != nullptr && std::sscanf(text, "%d %d %d", &of_rank, &said.first, &said.count) >= 2;
    return is_said && of_rank == rank ? said : Failing();
  }();
  static std::atomic<int> sent = 0;
  const int place = kFailing.count > 0 ? sent++ - kFailing.first : -1;
  return place >= 0 && place < kFailing.count;
}

}  // namespace
}  // namespace tessera

extern "C" {

void tessera_fail_sends(int peer, int passing) {
  tessera::fault() = {.peer = peer, .passing = passing};
}

void tessera_delay_sends(int peer, int passing, double seconds) {
  tessera::fault() = {.peer = peer, .passing = passing, .delay_seconds = seconds};
}

// MPI's parameters.
// NOLINTNEXTLINE(readability-function-size)
int MPI_Isend(const void* buf,
              int count,
              MPI_Datatype datatype,
              int dest,
              int tag,
              MPI_Comm comm,
              MPI_Request* request) {
  if (tessera::is_cut_off()) {
    return MPI_ERR_OTHER;
  }
  if (tessera::strikes(dest)) {
    if (!tessera::fault().delay_seconds) {
      return MPI_ERR_OTHER;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(*tessera::fault().delay_seconds));
  }
  return PMPI_Isend(buf, count, datatype, dest, tag, comm, request);
}

int MPI_Finalize() {
  const char* const stuck = std::getenv(tessera::kStuckInFinalize);
  int rank = -1;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  while (stuck != nullptr && std::atoi(stuck) == rank) {
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
  return PMPI_Finalize();
}
}
