#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/cluster.h"
#include "tessera/ops/work.h"

namespace tessera {

// A kernel that others timed on a GPU.
struct KernelPoint {
  Works works;
  double seconds = 0.0;
};

// Of one GPU, by what they are.
struct KernelPoints {
  std::vector<KernelPoint> attention;  // forward
  std::vector<KernelPoint> attention_backward;
  std::vector<KernelPoint> norms;  // forward
  std::vector<KernelPoint> norms_backward;
  std::vector<KernelPoint> products;         // bf16, the best of many shapes
  std::vector<KernelPoint> narrow_products;  // likewise, fp8
};

// The rows of `gpu` ("NVIDIA H200") in attention.csv, norms.csv and gemm_peaks.csv of `directory`,
// those of bf16, and products of fp8, too. A table that is not there has no rows. Errors:
// kInvalidData with file, row and column.
KernelPoints read_kernel_points(const std::filesystem::path& directory, std::string_view gpu);

}  // namespace tessera
