#include "tessera/weights/merge_adapters.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/passes/graph/add_adapters.h"
#include "tessera/plan/graphs.h"

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

AdapterMerge::AdapterMerge(const CheckpointReader& checkpoint, const ModelDescription& model) {
  if (!model.adapters) {
    return;
  }
  options_ = *model.adapters;
  ModelDescription base = model;
  base.adapters.reset();
  std::map<std::string, std::vector<std::byte>> bytes;
  std::vector<TensorRead> reads;
  const auto read = [&](const std::string& name) {
    const ManifestTensor* const tensor = checkpoint.find(name, TensorRole::kParameter);
    TESSERA_CHECK(tensor != nullptr, "no {} in the checkpoint", name);
    std::vector<std::byte>& out = bytes[name];
    out.resize(
        static_cast<std::size_t>(tensor_size_bytes(tensor->dtype, tensor->shape).value_or(0)));
    reads.push_back({.tensor = tensor, .out = out});
  };
  for (const AdaptableWeight& weight : adaptable_weights(training_graph(base, 1, 1, DType::kF32))) {
    if (std::ranges::count(options_.targets, target_name(weight.name)) > 0) {
      TESSERA_CHECK(weight.outputs_first, "{} is stored as inputs by outputs", weight.name);
      adapters_[weight.name] = {};
      read(adapter_a(weight.name));
      read(adapter_b(weight.name));
    }
  }
  checkpoint.load(reads);
  const auto values = [&](const std::string& name) {
    const DType dtype = checkpoint.find(name, TensorRole::kParameter)->dtype;
    std::vector<float> floats(bytes[name].size() / size_bytes(dtype));
    for (std::size_t i = 0; i < floats.size(); ++i) {
      floats[i] = value_at(bytes[name].data(), dtype, i);
    }
    return floats;
  };
  for (auto& [name, adapter] : adapters_) {
    adapter = {.a = values(adapter_a(name)), .b = values(adapter_b(name))};
  }
}

void AdapterMerge::add(const std::string& parameter,
                       std::int64_t row,
                       DType dtype,
                       std::span<std::byte> out) {
  const auto found = adapters_.find(parameter);
  if (found == adapters_.end()) {
    return;
  }
  const Adapter& adapter = found->second;
  const auto scale = static_cast<float>(options_.scale());
  const std::size_t count = out.size() / size_bytes(dtype);
  update_.assign(count, 0.0F);
  for (std::int64_t r = 0; r < options_.rank; ++r) {
    const float factor = scale * adapter.b[static_cast<std::size_t>(row * options_.rank + r)];
    const float* const a = adapter.a.data() + static_cast<std::size_t>(r) * count;
    for (std::size_t i = 0; i < count; ++i) {
      update_[i] += factor * a[i];
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    set_value(out.data(), dtype, i, value_at(out.data(), dtype, i) + update_[i]);
  }
}

}  // namespace tessera
