// Fits the constants of a device's curve to times that others published, and says how near they
// come.
//
// usage: curve_fit CLUSTER.toml GPU DIRECTORY
//
// CLUSTER.toml has the figures of the device, and the curve to start from if it has one. DIRECTORY
// holds attention.csv, norms.csv and gemm_peaks.csv in the form of ../shared/published/micro, whose
// rows of GPU ("NVIDIA H200") in bf16, and products in fp8, too, are read; without one of these
// files, or rows in it, its constants stay as they are. k_half, tile_half and comm_share always do:
// these tables cannot tell them. Prints [device] with what was fitted, and of each table the mean
// and the largest error before and after.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/device_time.h"
#include "tessera/mesh/cluster.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

using Row = std::map<std::string, std::string>;

struct Point {
  Works works;
  double seconds = 0.0;
};

using Points = std::vector<Point>;

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) {
    result.push_back(cell);
  }
  return result;
}

// Rows without quotes, by the names of the first line.
std::vector<Row> read_rows(const std::filesystem::path& path) {
  std::vector<Row> rows;
  if (!std::filesystem::exists(path)) {
    return rows;
  }
  std::istringstream lines(read_file(path));
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> names = cells(line);
  while (std::getline(lines, line)) {
    const std::vector<std::string> values = cells(line);
    Row row;
    for (std::size_t i = 0; i < std::min(names.size(), values.size()); ++i) {
      row[names[i]] = values[i];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TensorType tensor(DType dtype, const std::vector<std::int64_t>& bounds) {
  TensorType type = {.dtype = dtype, .dims = {}};
  for (const std::int64_t bound : bounds) {
    type.dims.push_back({.name = format("d{}", type.dims.size()), .bound = bound});
  }
  return type;
}

// Forward and backward of a row of attention.csv.
std::pair<Point, Point> attention(const Row& row) {
  const std::int64_t batch = std::stoll(row.at("batch"));
  const std::int64_t tokens = std::stoll(row.at("seq"));
  const std::int64_t heads = std::stoll(row.at("heads"));
  const std::int64_t channels = std::stoll(row.at("head_dim"));
  const bool causal = row.at("mask") == "causal";
  const TensorType q = tensor(DType::kBF16, {batch, tokens, heads, channels});
  const TensorType k =
      tensor(DType::kBF16, {batch, tokens, std::stoll(row.at("kv_heads")), channels});
  const TensorType ids = tensor(DType::kI32, {batch, tokens});
  const TensorType lse = tensor(DType::kF32, {batch, heads, tokens});
  return {{.works = work(*make_op(AttentionAttrs{.causal = causal}),
                         TensorTypes{q, k, k, ids, ids, ids, ids}),
           .seconds = std::stod(row.at("fwd_ms")) * 1e-3},
          {.works = work(*make_op(AttentionBackwardAttrs{.causal = causal}),
                         TensorTypes{q, q, k, k, q, lse, ids, ids, ids, ids}),
           .seconds = std::stod(row.at("bwd_ms")) * 1e-3}};
}

// Forward of a row of norms.csv.
Point norm(const Row& row) {
  const std::int64_t width = std::stoll(row.at("width"));
  const TensorType x = tensor(DType::kBF16, {std::stoll(row.at("rows")), width});
  const TensorType gain = tensor(DType::kBF16, {width});
  return {.works = row.at("norm") == "rms_norm"
                       ? work(*make_op(RmsNormAttrs{}), TensorTypes{x, gain})
                       : work(*make_op(LayerNormAttrs{}), TensorTypes{x, gain, gain}),
          .seconds = std::stod(row.at("fwd_ms")) * 1e-3};
}

// A row of gemm_peaks.csv.
Point product(const Row& row) {
  std::array<std::int64_t, 3> sides = {};
  std::istringstream shape(row.at("best_shape_MxNxK"));
  char cross = 'x';
  shape >> sides[0] >> cross >> sides[1] >> cross >> sides[2];
  const DType dtype = row.at("dtype") == "fp8" ? DType::kF8E4M3 : DType::kBF16;
  Work work = product_work({.m = sides[0],
                            .n = sides[1],
                            .k = sides[2],
                            .transpose_b = true,
                            .input = dtype,
                            .output = DType::kBF16});
  return {.works = {work}, .seconds = flop(work) / (std::stod(row.at("best_TFLOPs")) * 1e12)};
}

struct Errors {
  double mean = 0.0;
  double largest = 0.0;
};

Errors errors_of(const DeviceSpec& device, const Points& points) {
  const DeviceTime time(device);
  Errors errors;
  for (const Point& point : points) {
    const double error = std::abs(time.seconds(point.works) / point.seconds - 1.0);
    errors.mean += error / static_cast<double>(points.size());
    errors.largest = std::max(errors.largest, error);
  }
  return errors;
}

// Multiplies the constant by `factor` where the mean error then falls, and says whether it does.
// Shares stay below 1.
bool move(const DeviceSpec& device, const Points& points, double& constant, double factor) {
  const double before = constant;
  const double error = errors_of(device, points).mean;
  constant = before * factor;
  const bool is_allowed = before > 1.0 || constant <= 1.0;
  if (is_allowed && errors_of(device, points).mean < error) {
    return true;
  }
  constant = before;
  return false;
}

// Moves each constant up and down by ever smaller factors as long as that helps. The constants are
// the device's.
void fit(const DeviceSpec& device, const Points& points, const std::vector<double*>& constants) {
  constexpr std::array kFactors = {1.3, 1.1, 1.03, 1.01, 1.003, 1.001};
  for (const double factor : kFactors) {
    for (bool moved = !points.empty(); moved;) {
      moved = false;
      for (double* constant : constants) {
        moved = move(device, points, *constant, factor) ||
                move(device, points, *constant, 1.0 / factor) || moved;
      }
    }
  }
}

// A table's name and points.
using Table = std::pair<std::string, Points>;

void report(const DeviceSpec& device, std::string_view which, const std::vector<Table>& tables) {
  for (const auto& [table, points] : tables) {
    if (!points.empty()) {
      const Errors errors = errors_of(device, points);
      std::printf("# %-6s %-20s %3zu points: mean error %4.1f %%, largest %4.1f %%\n",
                  std::string(which).c_str(),
                  table.c_str(),
                  points.size(),
                  errors.mean * 100.0,
                  errors.largest * 100.0);
    }
  }
}

void fit_device(const std::filesystem::path& cluster,
                const std::string& gpu,
                const std::filesystem::path& directory) {
  DeviceSpec device = load_cluster(cluster).device;
  device.curve = device.curve.value_or(kUsualCurve);
  Points both;
  Points forward;
  Points backward;
  for (const Row& row : read_rows(directory / "attention.csv")) {
    if (row.at("gpu") == gpu && row.at("dtype") == "bfloat16") {
      const auto [ahead, back] = attention(row);
      forward.push_back(ahead);
      backward.push_back(back);
      both.insert(both.end(), {ahead, back});
    }
  }
  // Below 10 us the table's last digit is 5 % and more.
  constexpr double kShortest = 10e-6;
  Points norms;
  for (const Row& row : read_rows(directory / "norms.csv")) {
    if (row.at("gpu") == gpu && row.at("backend") == "cudnn" && norm(row).seconds >= kShortest) {
      norms.push_back(norm(row));
    }
  }
  std::map<std::string, Points> products;
  for (const Row& row : read_rows(directory / "gemm_peaks.csv")) {
    if (row.at("accelerator").starts_with(gpu + " SXM")) {
      products[row.at("dtype")].push_back(product(row));
    }
  }
  DeviceCurve& curve = *device.curve;
  if (device.peak_flops.f8 == 0.0) {
    curve.matmul.f8 = 0.0;
  } else if (curve.matmul.f8 == 0.0) {
    curve.matmul.f8 = curve.matmul.bf16;
  }
  const std::vector<Table> tables = {{"attention forward", forward},
                                     {"attention backward", backward},
                                     {"norms", norms},
                                     {"largest bf16 product", products["bf16"]},
                                     {"largest fp8 product", products["fp8"]}};
  report(device, "before", tables);
  fit(device, norms, {&curve.stream, &curve.kernel});
  fit(device, both, {&curve.attention.forward, &curve.attention.backward, &curve.attention.half});
  fit(device, products["bf16"], {&curve.matmul.bf16});
  fit(device, products["fp8"], {&curve.matmul.f8});
  std::printf("[device]\n%s", to_toml(device).c_str());
  report(device, "fitted", tables);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr, "usage: curve_fit CLUSTER.toml GPU DIRECTORY\n");
    return 2;
  }
  tessera::fit_device(argv[1], argv[2], argv[3]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
