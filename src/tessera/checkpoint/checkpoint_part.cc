#include "tessera/checkpoint/checkpoint_part.h"

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/tensor_size.h"

namespace tessera {
namespace {

// Tensors of the model have its own names, so that other tools read their files as weights.
std::string key_of(const CheckpointTensor& tensor) {
  return is_of_model(tensor.role) ? tensor.name
                                  : format("{}/{}", to_string(tensor.role), tensor.name);
}

void require_unique(std::span<const CheckpointTensor> tensors) {
  std::set<std::pair<std::string_view, TensorRole>> seen;
  for (const CheckpointTensor& tensor : tensors) {
    TESSERA_REQUIRE(seen.emplace(tensor.name, tensor.role).second,
                    ErrorCode::kInvalidArgument,
                    "{} '{}' is in the checkpoint twice",
                    to_string(tensor.role),
                    tensor.name);
  }
}

TensorSlice slice_of(const CheckpointTensor& tensor) {
  return tensor.slice ? *tensor.slice : whole_slice(tensor.shape);
}

// Adds the tensors, which lie in one file of this name.
void add_file(CheckpointPart& part,
              const std::string& name,
              std::span<const CheckpointTensor* const> tensors) {
  PartFile file{.name = name, .tensors = {}};
  for (const CheckpointTensor* tensor : tensors) {
    const TensorSlice slice = slice_of(*tensor);
    file.tensors.push_back({.name = key_of(*tensor),
                            .dtype = tensor->dtype,
                            .shape = is_box(slice) ? slice.extent : std::vector{slice.count},
                            .data = tensor->data,
                            .source = tensor->source});
    part.manifest.tensors.push_back(
        {.name = tensor->name,
         .role = tensor->role,
         .dtype = tensor->dtype,
         .shape = tensor->shape,
         .slices = {{.file = file.name, .key = key_of(*tensor), .part = slice}}});
  }
  verify(file.tensors);
  file.tensors = in_file_order(file.tensors);
  part.files.push_back(std::move(file));
}

}  // namespace

std::size_t saved_bytes(const CheckpointTensor& tensor) {
  const std::array<std::int64_t, 1> count = {slice_of(tensor).count};
  const std::optional<std::int64_t> bytes = tensor_size_bytes(tensor.dtype, count);
  TESSERA_REQUIRE(bytes.has_value(),
                  ErrorCode::kInvalidArgument,
                  "{} '{}' has a size that no memory has",
                  to_string(tensor.role),
                  tensor.name);
  return static_cast<std::size_t>(*bytes);
}

CheckpointPart plan_part(const CheckpointMeta& meta,
                         std::span<const CheckpointTensor> tensors,
                         const PartOptions& options) {
  require_unique(tensors);
  CheckpointPart part{.manifest = {.meta = meta, .files = {}, .tensors = {}}, .files = {}};
  const std::string rank =
      options.num_ranks == 1 ? std::string() : format("rank-{:05}-", options.rank);
  for (const bool of_model : {true, false}) {
    const auto runs = split_into_files(tensors, of_model, options.max_file_bytes);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::string name = format("{}{}-{:05}-of-{:05}.safetensors",
                                      rank,
                                      of_model ? "model" : "optimizer",
                                      i + 1,
                                      runs.size());
      add_file(part, name, runs[i]);
    }
  }
  return part;
}

std::vector<std::vector<const CheckpointTensor*>> split_into_files(
    std::span<const CheckpointTensor> tensors, bool of_model, std::int64_t max_bytes) {
  std::vector<std::vector<const CheckpointTensor*>> files;
  std::int64_t filled = 0;
  for (const CheckpointTensor& tensor : tensors) {
    if (is_of_model(tensor.role) != of_model) {
      continue;
    }
    const auto size = static_cast<std::int64_t>(saved_bytes(tensor));
    if (files.empty() || filled > max_bytes - size) {
      files.emplace_back();
      filled = 0;
    }
    files.back().push_back(&tensor);
    filled += size;
  }
  return files;
}

}  // namespace tessera
