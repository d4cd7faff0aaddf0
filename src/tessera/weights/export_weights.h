#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "tessera/ir/dtype.h"

namespace tessera {

struct ExportOptions {
  std::filesystem::path checkpoint;             // or a run directory: its newest checkpoint
  std::filesystem::path output;                 // a directory that is not there, or empty
  std::int64_t max_file_bytes = 5'000'000'000;  // a larger weight has a file of its own
  std::optional<DType> dtype = {};              // f32, bf16 or f16; none: as they were trained
};

// Writes the weights of a checkpoint as a directory that Hugging Face's transformers load:
// config.json, model.safetensors (or several with model.safetensors.index.json), and tokenizer.json
// where the run's is there. Every byte is read once, whatever the model's size through 80 MiB of
// buffers and, in windows of 16 MiB or one transposed weight, what is being made (128 MiB more of a
// checkpoint of many files, whose tensors then come in the order in which each file has them).
// Files that hold none of the weights are not read.
// Errors: kInvalidData for a damaged checkpoint, of which no file of weights appears;
// kInvalidConfig where there is none, for an output that exists, for a weight that f16 cannot hold;
// kDeviceError.
void export_weights(const ExportOptions& options);

}  // namespace tessera
