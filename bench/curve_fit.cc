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
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/csv_table.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/toml.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/fit.h"
#include "tessera/mesh/cluster.h"
#include "tessera/ops/all_ops.h"

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

// Empty where there is no file.
CsvTable read_table(const std::filesystem::path& path) {
  return CsvTable(std::filesystem::exists(path) ? read_file(path) : "", path.string());
}

double milliseconds(const CsvTable& table, std::size_t row, std::string_view column) {
  return table.amount(row, column) * 1e-3;
}

TensorType tensor(DType dtype, const std::vector<std::int64_t>& bounds) {
  TensorType type = {.dtype = dtype, .dims = {}};
  for (const std::int64_t bound : bounds) {
    type.dims.push_back({.name = format("d{}", type.dims.size()), .bound = bound});
  }
  return type;
}

// Forward and backward of a row of attention.csv.
std::pair<Point, Point> attention(const CsvTable& table, std::size_t row) {
  const std::int64_t batch = table.count(row, "batch");
  const std::int64_t tokens = table.count(row, "seq");
  const std::int64_t heads = table.count(row, "heads");
  const std::int64_t channels = table.count(row, "head_dim");
  const std::string& mask = table.text(row, "mask");
  if (mask != "causal" && mask != "none") {
    table.refuse(row, "mask", "causal or none");
  }
  const bool causal = mask == "causal";
  const TensorType q = tensor(DType::kBF16, {batch, tokens, heads, channels});
  const TensorType k =
      tensor(DType::kBF16, {batch, tokens, table.count(row, "kv_heads"), channels});
  const TensorType ids = tensor(DType::kI32, {batch, tokens});
  const TensorType lse = tensor(DType::kF32, {batch, heads, tokens});
  return {{.works = work(*make_op(AttentionAttrs{.causal = causal}),
                         TensorTypes{q, k, k, ids, ids, ids, ids}),
           .seconds = milliseconds(table, row, "fwd_ms")},
          {.works = work(*make_op(AttentionBackwardAttrs{
                             .causal = causal, .whole_rows = true, .any_order = true}),
                         TensorTypes{q, q, k, k, q, lse, ids, ids, ids, ids}),
           .seconds = milliseconds(table, row, "bwd_ms")}};
}

// Forward and backward of a row of rms_norm of norms.csv.
std::pair<Point, Point> norm(const CsvTable& table, std::size_t row) {
  const std::int64_t rows = table.count(row, "rows");
  const std::int64_t width = table.count(row, "width");
  const TensorType x = tensor(DType::kBF16, {rows, width});
  const TensorType gain = tensor(DType::kBF16, {width});
  const TensorType rstd = tensor(DType::kF32, {rows});
  return {{.works = work(*make_op(RmsNormAttrs{}), TensorTypes{x, gain}),
           .seconds = milliseconds(table, row, "fwd_ms")},
          {.works = work(*make_op(RmsNormBackwardAttrs{.weight_gradient = true}),
                         TensorTypes{x, x, gain, rstd}),
           .seconds = milliseconds(table, row, "bwd_ms")}};
}

// A row of gemm_peaks.csv.
Point product(const CsvTable& table, std::size_t row, DType dtype) {
  constexpr std::string_view kShape = "best_shape_MxNxK";
  std::array<std::int64_t, 3> sides = {};
  std::array<char, 2> between = {};
  std::istringstream shape(table.text(row, kShape));
  shape >> sides[0] >> between[0] >> sides[1] >> between[1] >> sides[2];
  if (!shape || between != std::array{'x', 'x'} || shape.peek() != EOF ||
      std::ranges::min(sides) < 1) {
    table.refuse(row, kShape, "three whole numbers, such as 1024x2048x4096");
  }
  const Work work = product_work({.m = sides[0],
                                  .n = sides[1],
                                  .k = sides[2],
                                  .transpose_b = true,
                                  .input = dtype,
                                  .output = DType::kBF16});
  return {.works = {work}, .seconds = flop(work) / (table.amount(row, "best_TFLOPs") * 1e12)};
}

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

void add(const Gpu& gpu, Points& points, Point point) {
  point.device = &gpu.cluster.device;
  points.push_back(std::move(point));
}

void add_rows(const Gpu& gpu, const std::filesystem::path& directory, Measured& measured) {
  const CsvTable attentions = read_table(directory / "attention.csv");
  for (std::size_t row = 0; row < attentions.num_rows(); ++row) {
    if (attentions.text(row, "gpu") == gpu.name && attentions.text(row, "dtype") == "bfloat16") {
      const auto [forward, backward] = attention(attentions, row);
      add(gpu, measured.forward.points, forward);
      add(gpu, measured.backward.points, backward);
    }
  }
  // Below 10 us the table's last digit is 5 % and more; wider rows our kernels read more than once,
  // as cuDNN's do not.
  constexpr double kShortest = 10e-6;
  constexpr std::int64_t kWidest = 8192;
  const CsvTable norms = read_table(directory / "norms.csv");
  for (std::size_t row = 0; row < norms.num_rows(); ++row) {
    if (norms.text(row, "gpu") == gpu.name && norms.text(row, "backend") == "cudnn" &&
        norms.text(row, "norm") == "rms_norm" && norms.count(row, "width") <= kWidest) {
      const auto [forward, backward] = norm(norms, row);
      if (forward.seconds >= kShortest) {
        add(gpu, measured.norms.points, forward);
        add(gpu, measured.norm_gradients.points, backward);
      }
    }
  }
  const CsvTable products = read_table(directory / "gemm_peaks.csv");
  for (std::size_t row = 0; row < products.num_rows(); ++row) {
    const std::string& dtype = products.text(row, "dtype");
    if (products.text(row, "accelerator") == gpu.name + " SXM" && dtype == "bf16") {
      add(gpu, measured.wide.points, product(products, row, DType::kBF16));
    } else if (products.text(row, "accelerator") == gpu.name + " SXM" && dtype == "fp8") {
      add(gpu, measured.narrow.points, product(products, row, DType::kF8E4M3));
    }
  }
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
