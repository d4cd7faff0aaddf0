#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/ir/dtype.h"
#include "tessera/models/model.h"

namespace tessera {

// The adapters of a checkpoint, on their way into the weights that they adapt.
class AdapterMerge {
 public:
  // Borrows the checkpoint, which is one of `model`.
  AdapterMerge(const CheckpointReader& checkpoint, const ModelDescription& model);

  // Reads the adapters of these parameters, those that have any, and forgets the earlier ones.
  void load(std::span<const std::string> parameters);

  // A stretch of a row of a parameter, as a matrix of outputs by inputs.
  struct Stretch {
    std::int64_t row = 0;
    std::int64_t first = 0;  // column
    DType dtype = DType::kF32;
    std::span<std::byte> elements = {};
  };

  // Adds alpha / rank * B A to elements of a parameter, which was loaded if it has an adapter: in
  // f32, and rounded once to their dtype.
  void add(const std::string& parameter, const Stretch& stretch);

 private:
  struct Adapter {
    std::vector<float> a;  // (rank, inputs)
    std::vector<float> b;  // (outputs, rank)
    std::int64_t inputs = 0;
  };

  std::vector<float> read(const std::string& name) const;

  const CheckpointReader& checkpoint_;
  std::map<std::string, std::int64_t> inputs_;  // of each parameter with an adapter
  std::map<std::string, Adapter> loaded_;
  AdapterOptions options_;
  std::vector<float> update_;
};

}  // namespace tessera
