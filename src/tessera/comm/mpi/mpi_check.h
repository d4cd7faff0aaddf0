#pragma once

namespace tessera {

// Throws kPeerFailure with MPI's own words unless `result` is MPI_SUCCESS.
void check_mpi(int result, const char* function);

}  // namespace tessera
