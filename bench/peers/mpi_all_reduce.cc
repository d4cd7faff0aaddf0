// Open MPI's MPI_Allreduce between two processes, for comm_bench, which starts it by mpirun. Prints
// "BYTES SECONDS" for each size in bytes that is given: the median time of one operation.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <mpi.h>

#include "bench/huge_memory.h"
#include "tessera/base/median.h"

namespace {

double measure(std::size_t bytes) {
  const std::size_t count = bytes / sizeof(float);
  const tessera::HugeMemory in(bytes);
  const tessera::HugeMemory out(bytes);
  const auto run = [&] {
    MPI_Allreduce(
        in.data(), out.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  // Rounds of about the same length whatever the size.
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{4} << 20U) / (bytes + 1024));
  run();
  std::vector<double> seconds;
  for (int round = 0; round < 15; ++round) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (std::size_t i = 0; i < repeats; ++i) {
      run();
    }
    seconds.push_back((MPI_Wtime() - start) / static_cast<double>(repeats));
  }
  return tessera::median(seconds);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 1; i < argc; ++i) {
    const double seconds = measure(static_cast<std::size_t>(std::atoll(argv[i])));
    if (rank == 0) {
      std::printf("%s %.9f\n", argv[i], seconds);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
