#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera {

// What one rank writes of a checkpoint: which files, and which tensors lie in each.

struct PartFile {
  std::string name;
  std::vector<SafetensorsTensor> tensors;  // as they lie in the file
};

struct CheckpointPart {
  Manifest manifest;  // lists a file once it is written
  std::vector<PartFile> files;
};

struct PartOptions {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
  std::int64_t max_file_bytes = SaveOptions().max_file_bytes;
};

// The part of options.rank; data stay where the caller has them. Errors: kInvalidArgument for a
// repeated (name, role), or data that does not match the shape.
CheckpointPart plan_part(const CheckpointMeta& meta,
                         std::span<const CheckpointTensor> tensors,
                         const PartOptions& options);

// The tensors of one kind of file, in runs of at most max_bytes: a run is a file.
std::vector<std::vector<const CheckpointTensor*>> split_into_files(
    std::span<const CheckpointTensor> tensors, bool of_model, std::int64_t max_bytes);

}  // namespace tessera
