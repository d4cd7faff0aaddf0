#include "tessera/train/merge_adapters.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/passes/add_adapters.h"
#include "tessera/train/step_program.h"

namespace tessera {
namespace {

float value_at(const std::byte* elements, DType dtype, std::size_t i) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, elements + i * sizeof(float), sizeof(float));
    return value;
  }
  BFloat16 value{};
  std::memcpy(&value, elements + i * sizeof(BFloat16), sizeof(BFloat16));
  return to_float(value);
}

void set_value(std::byte* elements, DType dtype, std::size_t i, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(elements + i * sizeof(float), &value, sizeof(float));
    return;
  }
  const BFloat16 rounded = to_bfloat16(value);
  std::memcpy(elements + i * sizeof(BFloat16), &rounded, sizeof(BFloat16));
}

}  // namespace

AdapterMerge::AdapterMerge(const CheckpointReader& checkpoint, const ModelDescription& model)
    : checkpoint_(checkpoint) {
  if (!model.adapters) {
    return;
  }
  options_ = *model.adapters;
  ModelDescription base = model;
  base.adapters.reset();
  for (const AdaptableWeight& weight : adaptable_weights(training_graph(base, 1, 1, DType::kF32))) {
    if (std::ranges::count(options_.targets, target_name(weight.name)) > 0) {
      TESSERA_CHECK(weight.outputs_first, "{} is stored as inputs by outputs", weight.name);
      inputs_[weight.name] = weight.inputs;
    }
  }
}

std::vector<float> AdapterMerge::read(const std::string& name) const {
  const ManifestTensor* tensor = checkpoint_.find(name, TensorRole::kParameter);
  TESSERA_CHECK(tensor != nullptr, "no {} in the checkpoint", name);
  const std::vector<std::byte> bytes = checkpoint_.read(name, TensorRole::kParameter);
  std::vector<float> values(bytes.size() / size_bytes(tensor->dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = value_at(bytes.data(), tensor->dtype, i);
  }
  return values;
}

void AdapterMerge::load(std::span<const std::string> parameters) {
  loaded_.clear();
  for (const std::string& parameter : parameters) {
    if (const auto inputs = inputs_.find(parameter); inputs != inputs_.end()) {
      loaded_[parameter] = {.a = read(adapter_a(parameter)),
                            .b = read(adapter_b(parameter)),
                            .inputs = inputs->second};
    }
  }
}

void AdapterMerge::add(const std::string& parameter, const Stretch& stretch) {
  const auto found = loaded_.find(parameter);
  if (found == loaded_.end()) {
    return;
  }
  const Adapter& adapter = found->second;
  const auto scale = static_cast<float>(options_.scale());
  const std::size_t count = stretch.elements.size() / size_bytes(stretch.dtype);
  update_.assign(count, 0.0F);
  for (std::int64_t r = 0; r < options_.rank; ++r) {
    const float factor =
        scale * adapter.b[static_cast<std::size_t>(stretch.row * options_.rank + r)];
    const float* const a =
        adapter.a.data() + static_cast<std::size_t>(r * adapter.inputs + stretch.first);
    for (std::size_t i = 0; i < count; ++i) {
      update_[i] += factor * a[i];
    }
  }
  std::byte* const elements = stretch.elements.data();
  for (std::size_t i = 0; i < count; ++i) {
    set_value(elements, stretch.dtype, i, value_at(elements, stretch.dtype, i) + update_[i]);
  }
}

}  // namespace tessera
