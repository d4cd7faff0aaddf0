#include "tessera/comm/mpi/mpi_launch.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/comm/mpi/mpi_plugin.h"

namespace tessera {
namespace {

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

class LaunchReader {
 public:
  explicit LaunchReader(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const { return environment_(name).has_value(); }

  std::int64_t number(const std::string& name) const {
    const std::optional<std::string> text = environment_(name);
    TESSERA_REQUIRE(text.has_value(),
                    ErrorCode::kInvalidConfig,
                    "the launcher's environment lacks {}; without a launcher, set "
                    "TESSERA_MPI=none",
                    name);
    const std::optional<std::int64_t> value = number_in(*text);
    TESSERA_REQUIRE(value.has_value(),
                    ErrorCode::kInvalidConfig,
                    "the launcher's environment has {}={}: expected a number",
                    name,
                    *text);
    return *value;
  }

  std::int64_t number(const std::string& name, std::int64_t otherwise) const {
    return has(name) ? number(name) : otherwise;
  }

  MpiLaunch open_mpi() const {
    return {.library = MpiLibrary::kOpenMpi,
            .rank = number("OMPI_COMM_WORLD_RANK"),
            .size = number("OMPI_COMM_WORLD_SIZE"),
            .local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK"),
            .local_size = number("OMPI_COMM_WORLD_LOCAL_SIZE")};
  }

  MpiLaunch slurm(MpiLibrary library) const {
    return {.library = library,
            .rank = number("SLURM_PROCID"),
            .size = slurm_tasks(),
            .local_rank = number("SLURM_LOCALID", 0),
            .local_size = slurm_local_tasks()};
  }

  MpiLaunch hydra() const {
    return {.library = MpiLibrary::kMpich,
            .rank = number("PMI_RANK"),
            .size = number("PMI_SIZE"),
            .local_rank = number("MPI_LOCALRANKID", 0),
            .local_size = number("MPI_LOCALNRANKS", 1)};
  }

  // A batch script has the variables of its job, but is no task of an srun.
  bool is_slurm_task() const { return has("SLURM_PROCID") && has("SLURM_STEP_NUM_TASKS"); }

  std::int64_t slurm_tasks() const { return number("SLURM_STEP_NUM_TASKS"); }

 private:
  // The step's tasks on this node, of "4(x2),3": a count for each node, runs of equal ones once.
  std::int64_t slurm_local_tasks() const {
    const std::string text = environment_("SLURM_STEP_TASKS_PER_NODE").value_or("1");
    std::int64_t node = number("SLURM_NODEID", 0);
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string_view entry = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
      const std::size_t repeat = entry.find("(x");
      const auto tasks = number_in(entry.substr(0, repeat));
      const auto nodes = repeat == std::string_view::npos
                             ? std::optional<std::int64_t>(1)
                             : number_in(entry.substr(repeat + 2, entry.size() - repeat - 3));
      if (!tasks || !nodes) {
        break;
      }
      if (node < *nodes) {
        return *tasks;
      }
      node -= *nodes;
    }
    fail(ErrorCode::kInvalidConfig,
         "the launcher's environment has SLURM_STEP_TASKS_PER_NODE={} and SLURM_NODEID={}: "
         "expected a count of tasks for that node",
         text,
         number("SLURM_NODEID", 0));
  }

  const Environment& environment_;
};

std::optional<MpiLaunch> launch_of(const LaunchReader& reader, bool asked) {
  if (reader.has("OMPI_COMM_WORLD_RANK")) {
    return reader.open_mpi();
  }
  if (reader.is_slurm_task()) {
    if (reader.has("PMIX_RANK")) {
      return reader.slurm(MpiLibrary::kOpenMpi);
    }
    if (reader.has("PMI_RANK")) {
      return reader.slurm(MpiLibrary::kMpich);
    }
    TESSERA_REQUIRE(asked || reader.slurm_tasks() == 1,
                    ErrorCode::kInvalidConfig,
                    "srun started {} tasks, but offers neither PMIx nor PMI, by which they would "
                    "find each other: use srun --mpi=pmix or --mpi=pmi2; for {} runs that know "
                    "nothing of each other, set TESSERA_MPI=none",
                    reader.slurm_tasks(),
                    reader.slurm_tasks());
    return reader.slurm(MpiLibrary::kOpenMpi);
  }
  if (reader.has("PMI_RANK")) {
    return reader.hydra();
  }
  return std::nullopt;
}

}  // namespace

std::string_view name(MpiLibrary library) {
  switch (library) {
    case MpiLibrary::kOpenMpi:
      return "Open MPI";
    case MpiLibrary::kMpich:
      return "MPICH";
  }
  return "?";
}

std::optional<std::string> process_environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<MpiLaunch> find_mpi_launch(const Environment& environment) {
  const std::string asked = environment("TESSERA_MPI").value_or("");
  if (asked == "none") {
    return std::nullopt;
  }
  TESSERA_REQUIRE(asked.empty() || asked == "openmpi" || asked == "mpich",
                  ErrorCode::kInvalidConfig,
                  "TESSERA_MPI={}: expected openmpi, mpich or none",
                  asked);
  std::optional<MpiLaunch> launch = launch_of(LaunchReader(environment), !asked.empty());
  TESSERA_REQUIRE(!launch || launch->rank < launch->size,
                  ErrorCode::kInvalidConfig,
                  "the launcher's environment says rank {} of {}",
                  launch->rank,
                  launch->size);
  if (asked.empty()) {
    return launch && launch->size > 1 ? launch : std::nullopt;
  }
  launch = launch.value_or(MpiLaunch());
  launch->library = asked == "openmpi" ? MpiLibrary::kOpenMpi : MpiLibrary::kMpich;
  return launch;
}

std::optional<double> launcher_grace(const Environment& environment) {
  const std::string asked = environment("TESSERA_MPI").value_or("");
  if (asked == "none" || !environment("OMPI_COMM_WORLD_RANK")) {
    return std::nullopt;
  }
  // That of Open MPI where nothing is set.
  constexpr std::int64_t kUsual = 1;
  const auto text = environment("OMPI_MCA_odls_base_sigkill_timeout");
  return static_cast<double>(text ? number_in(*text).value_or(kUsual) : kUsual);
}

std::unique_ptr<World> join_mpi_world(const MpiLaunch& launch, const WorldOptions& options) {
  const MpiPlugin& plugin = load_mpi_plugin(launch.library, mpi_plugin_places(launch.library));
  return std::unique_ptr<World>(plugin.join(launch, options));
}

}  // namespace tessera
