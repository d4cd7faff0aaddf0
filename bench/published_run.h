#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/published_defaults.h"
#include "bench/published_row.h"
#include "tessera/mesh/cluster.h"
#include "tessera/resolve/simulated_run.h"
#include "tessera/resolve/software_stack.h"

namespace tessera {

// All constants of a score: chips, links and stacks, by the names of their files.
struct PublishedConstants {
  std::map<std::string, Cluster, std::less<>> clusters;
  std::map<std::string, SoftwareStack, std::less<>> stacks;

  // Every file of `directory`, and the stacks of one. Errors: as load_cluster(), load_stacks().
  static PublishedConstants load(const std::filesystem::path& directory,
                                 const std::filesystem::path& stacks);
};

// A row as what it runs: keys of a run file, traits of the system, and the names of its constants.
struct PublishedRun {
  std::string chip;                      // in PublishedConstants::clusters
  std::string stack;                     // likewise
  std::vector<std::string> keys = {};    // "--section.key=value"
  std::vector<std::string> traits = {};  // of `tessera simulate --as`
  std::string waits = {};  // what there is none of yet; empty: the row can be expressed
};

PublishedRun express(const PublishedRow& row, const PublishedDefaults& defaults);

// The cluster of the row: the chip and what its levels do with their bandwidths are those of
// `chip`, the sizes and bandwidths those of the row.
Cluster row_cluster(const PublishedRow& row, const Cluster& chip);

// Compiled programs of rows, each once.
class PublishedPrograms {
 public:
  // Keeps cluster files in `directory`, which is there.
  explicit PublishedPrograms(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Errors: kInvalidConfig and kInvalidArgument where there is no such run.
  std::shared_ptr<const SimulatedRun> get(const PublishedRun& run, const Cluster& cluster);

 private:
  std::filesystem::path directory_;
  std::map<std::string, std::shared_ptr<const SimulatedRun>> runs_;
};

}  // namespace tessera
