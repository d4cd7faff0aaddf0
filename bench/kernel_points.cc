#include "bench/kernel_points.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <utility>

#include "bench/csv_table.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

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
std::pair<KernelPoint, KernelPoint> attention(const CsvTable& table, std::size_t row) {
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
std::pair<KernelPoint, KernelPoint> norm(const CsvTable& table, std::size_t row) {
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
KernelPoint product(const CsvTable& table, std::size_t row, DType dtype) {
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

void add_pair(std::pair<KernelPoint, KernelPoint> both,
              std::vector<KernelPoint>& forward,
              std::vector<KernelPoint>& backward) {
  forward.push_back(std::move(both.first));
  backward.push_back(std::move(both.second));
}

}  // namespace

KernelPoints read_kernel_points(const std::filesystem::path& directory, std::string_view gpu) {
  KernelPoints points;
  const CsvTable attentions = read_table(directory / "attention.csv");
  for (std::size_t row = 0; row < attentions.num_rows(); ++row) {
    if (attentions.text(row, "gpu") == gpu && attentions.text(row, "dtype") == "bfloat16") {
      add_pair(attention(attentions, row), points.attention, points.attention_backward);
    }
  }
  // Below 10 us the table's last digit is 5 % and more; wider rows our kernels read more than once,
  // as cuDNN's do not.
  constexpr double kShortest = 10e-6;
  constexpr std::int64_t kWidest = 8192;
  const CsvTable norms = read_table(directory / "norms.csv");
  for (std::size_t row = 0; row < norms.num_rows(); ++row) {
    if (norms.text(row, "gpu") == gpu && norms.text(row, "backend") == "cudnn" &&
        norms.text(row, "norm") == "rms_norm" && norms.count(row, "width") <= kWidest) {
      std::pair<KernelPoint, KernelPoint> both = norm(norms, row);
      if (both.first.seconds >= kShortest) {
        add_pair(std::move(both), points.norms, points.norms_backward);
      }
    }
  }
  const CsvTable products = read_table(directory / "gemm_peaks.csv");
  for (std::size_t row = 0; row < products.num_rows(); ++row) {
    const std::string& dtype = products.text(row, "dtype");
    const bool is_own = products.text(row, "accelerator") == std::string(gpu) + " SXM";
    if (is_own && dtype == "bf16") {
      points.products.push_back(product(products, row, DType::kBF16));
    } else if (is_own && dtype == "fp8") {
      points.narrow_products.push_back(product(products, row, DType::kF8E4M3));
    }
  }
  return points;
}

}  // namespace tessera
