#pragma once

// What failing_mpi.cc adds to an MPI library, found by dlsym(): C functions, by their names.

namespace tessera {

// From now on the first `passing` sends to `peer` go through, and what follows fails.
using FailSends = void(int peer, int passing);
inline constexpr const char* kFailSends = "tessera_fail_sends";

// From now on the first `passing` sends to `peer` go at once, and what follows so much later.
using DelaySends = void(int peer, int passing, double seconds);
inline constexpr const char* kDelaySends = "tessera_delay_sends";

// An environment variable, "RANK PASSING [FAILING]": after PASSING sends that go through, those of
// this rank fail: all of them, or FAILING of them.
inline constexpr const char* kFailingSends = "TESSERA_FAILING_SENDS";

// An environment variable: the rank that never comes back from MPI_Finalize.
inline constexpr const char* kStuckInFinalize = "TESSERA_STUCK_IN_FINALIZE";

}  // namespace tessera
