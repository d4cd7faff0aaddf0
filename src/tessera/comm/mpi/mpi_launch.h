#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/comm/communicator.h"

namespace tessera {

enum class MpiLibrary : std::uint8_t { kOpenMpi, kMpich };

std::string_view name(MpiLibrary library);

// What a launcher says of this process.
struct MpiLaunch {
  MpiLibrary library = MpiLibrary::kOpenMpi;
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::int64_t local_rank = 0;  // among the processes of this machine
  std::int64_t local_size = 1;
};

// The value of an environment variable, nothing where it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

// The launch that this process is part of, from the environment:
//
//   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE   mpirun of Open MPI
//   SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID       srun: Open MPI where it offers PMIx
//                                                           (PMIX_RANK), MPICH where PMI (PMI_RANK)
//   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS    mpirun of MPICH, and its kin
//   TESSERA_MPI = openmpi | mpich | none                    that library, or no launch, whatever
//                                                           the others say
//
// Nothing where there is no launcher, or where it started one process only, unless TESSERA_MPI
// names a library. Errors: kInvalidConfig for variables that contradict each other, and for
// several tasks of an srun that offers no PMI.
std::optional<MpiLaunch> find_mpi_launch(const Environment& environment = process_environment);

// The seconds between the SIGTERM and the SIGKILL by which the launcher ends the ranks that are
// left, on Ctrl-C or after one has failed, where it leaves as few as mpirun of Open MPI does;
// nothing under others.
std::optional<double> launcher_grace(const Environment& environment = process_environment);

// Joins the run as the launcher says, by the plugin of its MPI library, libtessera_openmpi.so or
// libtessera_mpich.so, which is looked for beside libtessera.so, beside the program, and where the
// system looks. Once in a process. It waits for every rank without a deadline, as MPI_Init does.
//
// A run that ends well calls World::leave(), which finalizes MPI. After an error nothing does: the
// process ends by std::_Exit or exit, neither of which waits for anybody, with an exit code other
// than 0, by which mpirun ends the ranks that are left.
//
// Errors: kInvalidConfig where the plugin is missing, naming library, places and package, is of
// another version, or where its MPI sees another rank or size; kUnsupported where MPI does not
// allow several threads.
std::unique_ptr<World> join_mpi_world(const MpiLaunch& launch, const WorldOptions& options = {});

}  // namespace tessera
