#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Low-rank adapters (LoRA) of a model's weights. A product y = x W^T with a weight of `targets`
// becomes
//   y = x W^T + (alpha / rank) (x A^T) B^T
// with A (rank, inputs) and B (outputs, rank), which alone are trained.
// Source: Hu et al. 2021, arXiv:2106.09685.
struct AdapterOptions {
  std::int64_t rank = 1;
  double alpha = 1.0;
  std::vector<std::string> targets = {};  // as target_name() has them

  double scale() const { return alpha / static_cast<double>(rank); }

  friend bool operator==(const AdapterOptions&, const AdapterOptions&) = default;
};

// The name of A or B of a weight, and whether a parameter is one.
std::string adapter_a(std::string_view weight);
std::string adapter_b(std::string_view weight);
bool is_adapter(std::string_view parameter);

// What a weight is called whatever its layer: "wq" of "layers.0.attention.wq.weight".
std::string target_name(std::string_view weight);

}  // namespace tessera
