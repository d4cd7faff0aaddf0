#include "tessera/comm/mpi/mpi_launch.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/comm/mpi/mpi_plugin.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [&variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::optional<MpiLaunch> launch_in(const Variables& variables) {
  return find_mpi_launch(environment_of(variables));
}

// Library, rank, size, local rank, local size; "none" for no launch.
std::string launch_text(const Variables& variables) {
  const std::optional<MpiLaunch> launch = launch_in(variables);
  return launch ? format("{} {}/{} {}/{}",
                         name(launch->library),
                         launch->rank,
                         launch->size,
                         launch->local_rank,
                         launch->local_size)
                : "none";
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    variables[name] = value;
  }
  return variables;
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kHydra = {
    {"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "6"},
                          {"SLURM_NTASKS", "11"},
                          {"SLURM_STEP_NUM_TASKS", "11"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_LOCALID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};

TEST(MpiLaunch, IsFoundInTheLaunchersEnvironment) {
  EXPECT_EQ(launch_text({}), "none");
  EXPECT_EQ(launch_text(kOpenMpi), "Open MPI 5/8 1/4");
  EXPECT_EQ(launch_text(kHydra), "MPICH 2/3 0/2");
  EXPECT_EQ(launch_text(with(kSlurm, {{"PMIX_RANK", "6"}})), "Open MPI 6/11 2/4");
  EXPECT_EQ(launch_text(with(kSlurm, {{"PMI_RANK", "6"}, {"PMI_SIZE", "11"}})), "MPICH 6/11 2/4");
  EXPECT_EQ(launch_text(with(kSlurm, {{"PMIX_RANK", "6"}, {"SLURM_NODEID", "2"}})),
            "Open MPI 6/11 2/3");
  // mpirun within a Slurm job.
  EXPECT_EQ(launch_text(with(kOpenMpi, kSlurm)), "Open MPI 5/8 1/4");
}

TEST(MpiLaunch, OneProcessIsNoLaunchUnlessAskedFor) {
  const Variables one = with(kOpenMpi,
                             {{"OMPI_COMM_WORLD_RANK", "0"},
                              {"OMPI_COMM_WORLD_SIZE", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_EQ(launch_text(one), "none");
  EXPECT_EQ(launch_text(with(one, {{"TESSERA_MPI", "openmpi"}})), "Open MPI 0/1 0/1");
  EXPECT_EQ(launch_text({{"TESSERA_MPI", "mpich"}}), "MPICH 0/1 0/1");
  // A batch script is one process, whatever its job has.
  EXPECT_EQ(launch_text({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), "none");
}

TEST(MpiLaunch, TheUserHasTheLastWord) {
  EXPECT_EQ(launch_text(with(kHydra, {{"TESSERA_MPI", "openmpi"}})), "Open MPI 2/3 0/2");
  EXPECT_EQ(launch_text(with(kHydra, {{"TESSERA_MPI", "none"}})), "none");
  EXPECT_EQ(launch_text(with(kSlurm, {{"TESSERA_MPI", "mpich"}})), "MPICH 6/11 2/4");
}

// The manual of Open MPI's mpirun: after Ctrl-C it sends SIGTERM, and SIGKILL
// odls_base_sigkill_timeout seconds later, by default one. Others wait for their ranks.
TEST(MpiLaunch, OpenMpiLeavesItsRanksASecondOrAsLongAsItWasTold) {
  const auto grace = [](const Variables& variables) {
    return launcher_grace(environment_of(variables));
  };
  const std::string limit = "OMPI_MCA_odls_base_sigkill_timeout";
  EXPECT_EQ(grace({}), std::nullopt);
  EXPECT_EQ(grace(kHydra), std::nullopt);
  EXPECT_EQ(grace(with(kSlurm, {{"PMIX_RANK", "6"}})), std::nullopt);
  EXPECT_EQ(grace(kOpenMpi), 1.0);
  EXPECT_EQ(grace(with(kOpenMpi, {{limit, "30"}})), 30.0);
  EXPECT_EQ(grace(with(kOpenMpi, {{limit, "soon"}})), 1.0);
  EXPECT_EQ(grace(with(kOpenMpi, {{limit, "30"}, {"TESSERA_MPI", "none"}})), std::nullopt);
}

TEST(MpiLaunch, RefusesWhatMakesNoSense) {
  const auto error = [](const Variables& variables) {
    return error_of(ErrorCode::kInvalidConfig, [&] { launch_in(variables); });
  };
  EXPECT_EQ(error({{"TESSERA_MPI", "intel"}}),
            "TESSERA_MPI=intel: expected openmpi, mpich or none");
  EXPECT_THAT(error({{"OMPI_COMM_WORLD_RANK", "0"}}), HasSubstr("lacks OMPI_COMM_WORLD_SIZE"));
  EXPECT_THAT(error(with(kHydra, {{"PMI_SIZE", "3x"}})),
              HasSubstr("has PMI_SIZE=3x: expected a number"));
  EXPECT_THAT(error(with(kHydra, {{"PMI_RANK", "3"}})), HasSubstr("rank 3 of 3"));
  EXPECT_THAT(error(kSlurm),
              AllOf(HasSubstr("srun started 11 tasks"), HasSubstr("--mpi=pmix or --mpi=pmi2")));
  EXPECT_THAT(error(with(kSlurm, {{"PMIX_RANK", "6"}, {"SLURM_NODEID", "3"}})),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE=4(x2),3 and SLURM_NODEID=3"));
}

std::string load_error(MpiLibrary library, const std::vector<std::string>& places) {
  return error_of(ErrorCode::kInvalidConfig, [&] { load_mpi_plugin(library, places); });
}

TEST(MpiPlugin, WhereItIsMissingTheErrorSaysWhatToDo) {
  const TestDirectory directory;
  const std::string absent = directory.path() / "absent.so";
  const std::string broken = directory.path() / "broken.so";
  write_file_atomic(broken, "no library");
  const std::string error = load_error(MpiLibrary::kOpenMpi, {absent, broken});
  EXPECT_THAT(error, HasSubstr("started by Open MPI, whose plugin libtessera_openmpi.so"));
  EXPECT_THAT(error, HasSubstr(absent + ": cannot open shared object file"));
  EXPECT_THAT(error, HasSubstr(broken + ": file too short"));
  EXPECT_THAT(error, HasSubstr("Debian package libopenmpi-dev"));
  EXPECT_THAT(load_error(MpiLibrary::kMpich, {absent}), HasSubstr("Debian package libmpich-dev"));
}

TEST(MpiPlugin, IsLookedForBesideLibraryAndProgram) {
  const std::vector<std::string> places = mpi_plugin_places(MpiLibrary::kMpich);
  ASSERT_GE(places.size(), 2U);
  const std::filesystem::path beside = places[0];
  EXPECT_EQ(beside.filename(), "libtessera_mpich.so");
  EXPECT_TRUE(std::filesystem::exists(beside.parent_path() / "libtessera.so")) << beside;
  EXPECT_EQ(places.back(), "libtessera_mpich.so");
}

// A library that is no plugin: Tessera's own.
TEST(MpiPlugin, RefusesAnotherLibrary) {
  EXPECT_THAT(load_error(MpiLibrary::kMpich, {TESSERA_BINARY_DIR "/libtessera.so"}),
              HasSubstr("has no function tessera_mpi_plugin"));
}

TEST(MpiPlugin, RefusesAnotherVersion) {
  EXPECT_THAT(
      load_error(MpiLibrary::kMpich, {TESSERA_BINARY_DIR "/tests/libother_version_plugin.so"}),
      AllOf(HasSubstr(format("is of Tessera 0.0.1 (interface {})", kMpiPluginAbi)),
            HasSubstr("install both from one build")));
}

}  // namespace
}  // namespace tessera
