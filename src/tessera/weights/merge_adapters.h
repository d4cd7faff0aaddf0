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
  // Reads the adapters of a checkpoint of `model`, whichever it has. Errors: as
  // CheckpointReader::load().
  AdapterMerge(const CheckpointReader& checkpoint, const ModelDescription& model);

  bool has(const std::string& parameter) const { return adapters_.contains(parameter); }

  // Adds alpha / rank * B A to a row of a parameter, as a matrix of outputs by inputs, where it has
  // an adapter: in f32, and rounded once to its dtype.
  void add(const std::string& parameter, std::int64_t row, DType dtype, std::span<std::byte> out);

 private:
  struct Adapter {
    std::vector<float> a;  // (rank, inputs)
    std::vector<float> b;  // (outputs, rank)
  };

  std::map<std::string, Adapter> adapters_;  // by parameter
  AdapterOptions options_;
  std::vector<float> update_;
};

}  // namespace tessera
