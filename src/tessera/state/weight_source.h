#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/ir/dtype.h"

namespace tessera {

// Elements of one of our parameters or buffers, in row-major order, and the memory that they go to.
struct WeightRead {
  std::string parameter;
  DType dtype = DType::kF32;  // of `out`: f32 or bf16
  std::int64_t first = 0;
  std::span<std::byte> out = {};
};

// Weights that a run starts from.
class WeightSource {
 public:
  WeightSource() = default;
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  // All of these in one pass through the files; reads nothing else. Wider types are exact, bf16 is
  // rounded from f32 to nearest, ties to even. Rows of a vocabulary that the weights do not have
  // become zero. Errors: kInvalidData naming the file.
  virtual void load(std::span<const WeightRead> reads) const = 0;

  // One read, of what load() checks.
  virtual void read(const WeightRead& read) const = 0;
};

}  // namespace tessera
