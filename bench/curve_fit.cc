// Fits the constants of a chip family's curve to times that others published, and says how near
// they come.
//
// usage: curve_fit DIRECTORY CLUSTER.toml=GPU...
//
// DIRECTORY holds attention.csv, norms.csv and gemm_peaks.csv. Of these the rows of each GPU
// ("NVIDIA H200") in bf16, and products in fp8, too, are read; its cluster file has the figures of
// the device. All GPUs get one curve, which starts as that of the first file if it has one. Without
// one of the tables, or rows in it, its constants stay as they are. k_half, tile_half and
// comm_share always do: these tables cannot tell them. Prints [device.curve] in three digits and
// [source], and of each table the mean and the largest error before and after.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/kernel_points.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/toml.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/fit.h"
#include "tessera/mesh/cluster.h"

namespace tessera {
namespace {

// A GPU of the tables and what its cluster file says of it.
struct Gpu {
  std::string name;
  Cluster cluster;
};

using Point = MeasuredWorks;
using Points = std::vector<Point>;

struct Table {
  std::string name;
  Points points;
};

// Fits these constants of the curve to the points, if there are any.
void fit(const DeviceCurve& curve, const Points& points, const std::vector<Constant>& constants) {
  if (!points.empty()) {
    descend(constants, [&] { return errors_of(curve, points).mean_square; });
  }
}

void report(const DeviceCurve& curve, std::string_view which, std::span<const Table> tables) {
  for (const auto& [name, points] : tables) {
    if (!points.empty()) {
      const FitErrors errors = errors_of(curve, points);
      std::printf("# %-6s %-20s %3zu points: mean error %4.1f %%, largest %4.1f %%\n",
                  std::string(which).c_str(),
                  name.c_str(),
                  points.size(),
                  errors.mean * 100.0,
                  errors.largest * 100.0);
    }
  }
}

// What [source] says of the curve.
std::string source_text(const DeviceCurve& curve,
                        std::span<const Gpu> gpus,
                        std::span<const Table> tables) {
  std::string text = "bench/curve_fit of";
  for (const Gpu& gpu : gpus) {
    text += format("{} {}", &gpu == gpus.data() ? "" : ",", gpu.name);
  }
  Points all;
  for (const auto& [name, points] : tables) {
    all.insert(all.end(), points.begin(), points.end());
  }
  const FitErrors errors = errors_of(curve, all);
  text += format("; {} kernels: mean error {:.1f} %, largest {:.1f} %",
                 all.size(),
                 errors.mean * 100.0,
                 errors.largest * 100.0);
  return text + "; k_half, tile_half and comm_share are guesses";
}

struct Measured {
  Table forward = {.name = "attention forward", .points = {}};
  Table backward = {.name = "attention backward", .points = {}};
  Table norms = {.name = "norms forward", .points = {}};
  Table norm_gradients = {.name = "norms backward", .points = {}};
  Table wide = {.name = "best bf16 products", .points = {}};
  Table narrow = {.name = "best fp8 products", .points = {}};
};

void add(const Gpu& gpu, Points& points, const std::vector<KernelPoint>& kernels) {
  for (const KernelPoint& kernel : kernels) {
    points.push_back(
        {.device = &gpu.cluster.device, .works = kernel.works, .seconds = kernel.seconds});
  }
}

void add_rows(const Gpu& gpu, const std::filesystem::path& directory, Measured& measured) {
  const KernelPoints points = read_kernel_points(directory, gpu.name);
  add(gpu, measured.forward.points, points.attention);
  add(gpu, measured.backward.points, points.attention_backward);
  add(gpu, measured.norms.points, points.norms);
  add(gpu, measured.norm_gradients.points, points.norms_backward);
  add(gpu, measured.wide.points, points.products);
  add(gpu, measured.narrow.points, points.narrow_products);
}

void fit_family(const std::filesystem::path& directory, std::span<const Gpu> gpus) {
  Measured measured;
  for (const Gpu& gpu : gpus) {
    add_rows(gpu, directory, measured);
  }
  DeviceCurve curve = gpus[0].cluster.device.curve.value_or(kUsualCurve);
  const bool has_f8 = std::ranges::all_of(
      gpus, [](const Gpu& gpu) { return gpu.cluster.device.peak_flops.f8 > 0.0; });
  if (!has_f8) {
    curve.matmul.f8 = 0.0;
    measured.narrow.points.clear();
  }
  const std::array tables = {measured.forward,
                             measured.backward,
                             measured.norms,
                             measured.norm_gradients,
                             measured.wide,
                             measured.narrow};
  TESSERA_REQUIRE(std::ranges::any_of(tables, [](const Table& t) { return !t.points.empty(); }),
                  ErrorCode::kInvalidData,
                  "{}: found no rows of {}, expected some in attention.csv, norms.csv or "
                  "gemm_peaks.csv",
                  directory.string(),
                  gpus[0].name);
  const auto both = [](const Table& a, const Table& b) {
    Points points = a.points;
    points.insert(points.end(), b.points.begin(), b.points.end());
    return points;
  };

  constexpr double kMost = 1e6;  // of constants that are no shares
  report(curve, "before", tables);
  fit(curve, both(measured.norms, measured.norm_gradients), {{&curve.stream}, {&curve.kernel}});
  fit(curve,
      both(measured.forward, measured.backward),
      {{&curve.attention.forward},
       {&curve.attention.backward, kMost},
       {&curve.attention.half, kMost}});
  fit(curve, measured.wide.points, {{&curve.matmul.bf16}});
  fit(curve, measured.narrow.points, {{&curve.matmul.f8}});
  report(curve, "fitted", tables);
  DeviceSpec device = gpus[0].cluster.device;
  device.curve = curve;
  const std::string text = to_toml(device);
  std::printf("%s\n[source]\ncurve = %s\n",
              text.substr(text.find("\n[device.curve]")).c_str(),
              toml_string(source_text(curve, gpus, tables)).c_str());
}

// "CLUSTER.toml=GPU".
Gpu gpu_of(std::string_view argument) {
  const std::size_t at = argument.find('=');
  TESSERA_REQUIRE(at != std::string_view::npos,
                  ErrorCode::kInvalidArgument,
                  "found \"{}\", expected CLUSTER.toml=GPU, such as h200.toml=NVIDIA H200",
                  argument);
  return {.name = std::string(argument.substr(at + 1)),
          .cluster = load_cluster(argument.substr(0, at))};
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: curve_fit DIRECTORY CLUSTER.toml=GPU...\n");
    return 2;
  }
  std::vector<tessera::Gpu> gpus;
  for (const char* argument : std::span(argv, static_cast<std::size_t>(argc)).subspan(2)) {
    gpus.push_back(tessera::gpu_of(argument));
  }
  tessera::fit_family(argv[1], gpus);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
