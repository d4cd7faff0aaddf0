#include "tessera/weights/exported_weight.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tessera {
namespace {

// An f32 parameter may have a master that is nearer to what was trained.
const ManifestTensor& source_of(const std::string& name, const CheckpointReader& checkpoint) {
  if (const ManifestTensor* buffer = checkpoint.find(name, TensorRole::kBuffer)) {
    return *buffer;
  }
  const ManifestTensor* parameter = checkpoint.find(name, TensorRole::kParameter);
  const ManifestTensor* master = checkpoint.find(name, TensorRole::kMaster);
  return parameter->dtype == DType::kF32 && master != nullptr ? *master : *parameter;
}

}  // namespace

std::int64_t ExportedWeight::element_bytes() const {
  return static_cast<std::int64_t>(size_bytes(dtype));
}

std::int64_t ExportedWeight::row_bytes() const {
  return form.columns() * element_bytes();
}

std::int64_t ExportedWeight::num_bytes() const {
  return form.rows() * form.columns() * static_cast<std::int64_t>(size_bytes(written));
}

bool ExportedWeight::has_our_rows() const {
  return form.parts.size() == 1 && form.parts[0].rotary_rows == 0;
}

bool ExportedWeight::is_as_ours() const {
  return has_our_rows() && !form.transposed && written == dtype && !is_adapted;
}

std::vector<ExportedWeight> exported_weights(std::vector<HuggingFaceWeight> weights,
                                             const CheckpointReader& checkpoint,
                                             const AdapterMerge& adapters,
                                             std::optional<DType> dtype) {
  std::vector<ExportedWeight> exported;
  for (HuggingFaceWeight& form : weights) {
    ExportedWeight& weight = exported.emplace_back();
    for (const HuggingFaceWeight::Part& part : form.parts) {
      weight.sources.push_back(&source_of(part.parameter, checkpoint));
    }
    const ManifestTensor& first = *weight.sources[0];
    weight.dtype = first.dtype;
    weight.written = first.role == TensorRole::kBuffer ? first.dtype : dtype.value_or(first.dtype);
    weight.is_adapted = form.parts.size() == 1 && adapters.has(form.parts[0].parameter);
    weight.form = std::move(form);
  }
  std::ranges::stable_sort(exported, {}, [](const ExportedWeight& weight) {
    return std::pair(-weight.element_bytes(), weight.sources[0]);
  });
  return exported;
}

}  // namespace tessera
