// Fits the constants of a level of a cluster to times of all-reduces that others published, and
// says how near they come.
//
// usage: level_fit CLUSTER.toml LEVEL CHIP LEAST DIRECTORY
//
// CLUSTER.toml has the level's bandwidth, and switch_reduces if its switches add up. DIRECTORY
// holds collectives.csv, whose rows of nccl-tests on one
// node of CHIP ("h100-700w") with at least LEAST bytes are read, the smaller of the times out of
// place and in place. Latency is that of the file unless LEAST is 0: large collectives cannot tell
// it. Prints the level's keys, and of each number of devices the mean and the largest error.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/csv_table.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/cost/collective_time.h"
#include "tessera/cost/fit.h"
#include "tessera/mesh/cluster.h"

namespace tessera {
namespace {

// By number of devices.
using Points = std::map<std::int64_t, std::vector<MeasuredLeg>>;

MeasuredLeg point(const CsvTable& table, std::size_t row) {
  constexpr std::string_view kInPlace = "in place ";
  double microseconds = table.amount(row, "time_us");
  const std::string& statistic = table.text(row, "statistic");
  if (const std::size_t place = statistic.find(kInPlace); place != std::string::npos) {
    microseconds = std::min(microseconds, std::stod(statistic.substr(place + kInPlace.size())));
  }
  return {.work = {.axis = "",
                   .kind = CollectiveKind::kAllReduce,
                   .ranks = table.count(row, "gpus"),
                   .bytes = table.amount(row, "payload_bytes")},
          .style = CollectiveStyle::kNative,
          .seconds = microseconds * 1e-6};
}

// Mean over all points.
double mean_error(const Level& level, const Points& points) {
  std::vector<MeasuredLeg> all;
  for (const auto& [devices, of_devices] : points) {
    all.insert(all.end(), of_devices.begin(), of_devices.end());
  }
  return errors_of(level, all).mean;
}

void report(const Level& level, const Points& points) {
  for (const auto& [devices, of_devices] : points) {
    const FitErrors errors = errors_of(level, of_devices);
    std::printf("# %lld devices, %2zu points: mean error %4.1f %%, largest %4.1f %%\n",
                static_cast<long long>(devices),
                of_devices.size(),
                errors.mean * 100.0,
                errors.largest * 100.0);
  }
}

void fit_level(const std::filesystem::path& cluster,
               const std::string& name,
               const std::string& chip,
               double least,
               const std::filesystem::path& directory) {
  const std::vector<Level> levels = load_cluster(cluster).levels;
  const auto found = std::ranges::find(levels, name, &Level::name);
  TESSERA_REQUIRE(found != levels.end(),
                  ErrorCode::kInvalidArgument,
                  "{} has no level \"{}\"",
                  cluster.string(),
                  name);
  Level level = *found;
  const std::filesystem::path path = directory / "collectives.csv";
  const CsvTable table(read_file(path), path.string());
  Points points;
  for (std::size_t row = 0; row < table.num_rows(); ++row) {
    if (table.text(row, "system") == "nccl-tests" && table.text(row, "chip") == chip &&
        table.text(row, "nodes") == "1" && table.text(row, "collective") == "all_reduce" &&
        table.amount(row, "payload_bytes") >= least) {
      points[table.count(row, "gpus")].push_back(point(table, row));
    }
  }
  TESSERA_REQUIRE(!points.empty(),
                  ErrorCode::kInvalidArgument,
                  "{} has no rows of {} from {} bytes",
                  path.string(),
                  chip,
                  least);
  constexpr double kLargest = 1e9;  // bytes
  // From where every level starts, so that what comes out does not depend on the file's.
  level.half = 10e6;
  level.efficiency = 0.8;
  std::vector<Constant> constants = {{.value = &level.half, .most = kLargest},
                                     {.value = &level.efficiency}};
  if (least == 0.0) {
    level.latency = 3e-6;
    constants.push_back({.value = &level.latency});
  }
  descend(constants, [&] { return mean_error(level, points); });
  std::printf("latency = \"%.3g us\"\nhalf = \"%.3g MB\"\nefficiency = %.3g\n",
              level.latency * 1e6,
              level.half * 1e-6,
              level.efficiency);
  report(level, points);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  if (argc != 6) {
    std::fprintf(stderr, "usage: level_fit CLUSTER.toml LEVEL CHIP LEAST DIRECTORY\n");
    return 2;
  }
  tessera::fit_level(argv[1], argv[2], argv[3], std::stod(argv[4]), argv[5]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
