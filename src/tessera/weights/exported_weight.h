#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/ir/dtype.h"
#include "tessera/models/hugging_face_weight.h"
#include "tessera/weights/merge_adapters.h"

namespace tessera {

// A weight of a Hugging Face directory, and what of a checkpoint it is made of.
struct ExportedWeight {
  HuggingFaceWeight form;                      // in the directory
  std::vector<const ManifestTensor*> sources;  // by part, of the checkpoint
  DType dtype = DType::kF32;                   // of the first source
  DType written = DType::kF32;                 // in the file
  bool is_adapted = false;                     // it has one part, which has an adapter

  std::int64_t element_bytes() const;
  std::int64_t row_bytes() const;

  // As it is written.
  std::int64_t num_bytes() const;

  // Whether the rows of the weight are those of one parameter in the same order.
  bool has_our_rows() const;

  // Whether the bytes of the weight are those of one parameter.
  bool is_as_ours() const;
};

// The weights in the order in which the files of the checkpoint have them, so that a pass through
// these needs little memory. They are written as `dtype`, or, where that is not given, as they were
// trained; buffers keep their type.
std::vector<ExportedWeight> exported_weights(std::vector<HuggingFaceWeight> weights,
                                             const CheckpointReader& checkpoint,
                                             const AdapterMerge& adapters,
                                             std::optional<DType> dtype);

}  // namespace tessera
