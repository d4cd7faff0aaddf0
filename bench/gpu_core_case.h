#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/ir/dtype.h"
#include "tessera/ir/op.h"

namespace tessera {

// What gpu_core_bench measures.

enum class Fill : std::uint8_t { kRandom, kValue, kIds, kPositions };

struct Tensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes;
  Fill fill = Fill::kRandom;
  double value = 0;        // of kValue; kIds: less than it
  std::int64_t over = -1;  // a result in the memory of this operand

  std::int64_t elements() const {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) {
      count *= size;
    }
    return count;
  }

  std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(size_bytes(dtype)); }
};

struct Case {
  std::string name;  // by which the peer knows it, if it does
  OpRef op;
  std::vector<Tensor> in;
  std::vector<Tensor> out;
  double target = 0;  // of the ceiling; 0: none is set
  double flop = 0;    // of products, at the speed of the large one
  double bytes = -1;  // that are moved at the speed of a copy; less than 0: all, once
};

// Sizes of Llama 8B's layers and one sequence of 8192.
struct Shape {
  std::int64_t rows = 8192;
  std::int64_t width = 4096;
  std::int64_t ffn = 14336;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 8;
  std::int64_t vocab = 128256;
  std::int64_t flat = std::int64_t{1} << 27U;  // of a shard of parameters

  std::int64_t head() const { return width / heads; }
};

inline constexpr Shape kSmall = {
    .rows = 64, .width = 64, .ffn = 128, .heads = 4, .kv_heads = 2, .vocab = 512, .flat = 4096};

// Each op alone.
std::vector<Case> all_cases(const Shape& shape);

// The products of a chunk of the loss, each alone.
std::vector<Case> loss_products(const Shape& s);

// Rows whose logits exist at one time, as chunk_loss() chooses them for a GPU.
std::int64_t loss_chunk(const Shape& s);

double tensor_bytes(const std::vector<Tensor>& tensors);

// Of what lies between the loss's products.
double softmax_bytes(const Shape& s);

}  // namespace tessera
