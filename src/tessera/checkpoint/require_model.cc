#include "tessera/checkpoint/require_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Both sides of the first difference between two JSON values, or an empty place.
struct Difference {
  std::string place;
  std::string found;
  std::string expected;
};

Difference first_difference(const Json& found, const Json& expected) {
  const Json patch = Json::diff(found, expected);
  if (patch.empty()) {
    return {};
  }
  const std::string place = patch[0].at("path");
  const Json::json_pointer pointer(place);
  const auto show = [&](const Json& side) {
    return side.contains(pointer) ? side.at(pointer).dump() : std::string("none");
  };
  return {.place = place, .found = show(found), .expected = show(expected)};
}

[[noreturn]] void refuse(const CheckpointReader& checkpoint, const Difference& difference) {
  fail(ErrorCode::kInvalidData,
       "checkpoint {} belongs to another model: {}: found {}, expected {}; go on with the "
       "[model] that its run has, or choose another run.dir",
       checkpoint.directory().string(),
       difference.place,
       difference.found,
       difference.expected);
}

// Whether the parameter itself could be this master.
bool is_f32_parameter(const ManifestTensor& master, const CheckpointReader& checkpoint) {
  const ManifestTensor* parameter = checkpoint.find(master.name, TensorRole::kParameter);
  return parameter != nullptr && parameter->dtype == DType::kF32 && master.dtype == DType::kF32 &&
         parameter->shape == master.shape;
}

bool is_looked_at(TensorRole role, ModelScope scope) {
  return scope == ModelScope::kAll || is_of_model(role);
}

void require_state(const CheckpointReader& checkpoint, std::span<const CheckpointTensor> expected) {
  const auto is_state = [](const auto& tensor) { return !is_of_model(tensor.role); };
  TESSERA_REQUIRE(std::ranges::none_of(expected, is_state) ||
                      std::ranges::any_of(checkpoint.tensors(), is_state),
                  ErrorCode::kInvalidData,
                  "checkpoint {} has weights alone, as an import makes it, and a run goes on from "
                  "the optimizer's state, too: name it in model.weights, from which a "
                  "new run starts",
                  checkpoint.directory().string());
}

void require_tensor(const CheckpointReader& checkpoint, const CheckpointTensor& tensor) {
  const ManifestTensor* found = checkpoint.find(tensor.name, tensor.role);
  // Parameters have the dtype that the run computes in; masters are always f32, and a buffer's
  // dtype is the model's.
  const bool other_dtype = tensor.role != TensorRole::kMaster &&
                           tensor.role != TensorRole::kBuffer && found != nullptr &&
                           found->shape == tensor.shape && found->dtype != tensor.dtype;
  const char* const key =
      tensor.role == TensorRole::kParameter ? "train.dtype" : "optimizer.moments";
  TESSERA_REQUIRE(!other_dtype,
                  ErrorCode::kInvalidData,
                  "checkpoint {} was made with {} = \"{}\", found {} = \"{}\": go on with the "
                  "former, or choose another run.dir",
                  checkpoint.directory().string(),
                  key,
                  name(found->dtype),
                  key,
                  name(tensor.dtype));
  if (found == nullptr || found->dtype != tensor.dtype || found->shape != tensor.shape) {
    refuse(checkpoint,
           {.place = "tensor " + quote(tensor.name, tensor.role),
            .found = found == nullptr ? "none" : describe(found->dtype, found->shape),
            .expected = describe(tensor.dtype, tensor.shape)});
  }
}

void require_no_others(const CheckpointReader& checkpoint,
                       std::span<const CheckpointTensor> expected,
                       ModelScope scope) {
  std::set<std::pair<std::string_view, TensorRole>> wanted;
  for (const CheckpointTensor& tensor : expected) {
    wanted.emplace(tensor.name, tensor.role);
  }
  for (const ManifestTensor& tensor : checkpoint.tensors()) {
    const bool optional =
        tensor.role == TensorRole::kMaster && is_f32_parameter(tensor, checkpoint);
    if (is_looked_at(tensor.role, scope) && !optional &&
        !wanted.contains({tensor.name, tensor.role})) {
      refuse(checkpoint,
             {.place = "tensor " + quote(tensor.name, tensor.role),
              .found = describe(tensor.dtype, tensor.shape),
              .expected = "none"});
    }
  }
}

}  // namespace

void require_tensors(const Manifest& manifest, std::span<const CheckpointTensor> expected) {
  std::map<std::pair<std::string_view, TensorRole>, const ManifestTensor*> found;
  for (const ManifestTensor& tensor : manifest.tensors) {
    found.emplace(std::pair(std::string_view(tensor.name), tensor.role), &tensor);
  }
  for (const CheckpointTensor& tensor : expected) {
    const auto place = found.find({tensor.name, tensor.role});
    const bool is_there = place != found.end();
    TESSERA_REQUIRE(
        is_there && place->second->dtype == tensor.dtype && place->second->shape == tensor.shape,
        ErrorCode::kInvalidData,
        "tensor {}: found {} in the ranks' parts, expected {}",
        quote(tensor.name, tensor.role),
        is_there ? describe(place->second->dtype, place->second->shape) : "none",
        describe(tensor.dtype, tensor.shape));
    found.erase(place);
  }
  TESSERA_REQUIRE(found.empty(),
                  ErrorCode::kInvalidData,
                  "tensor {}: found {} in the ranks' parts, expected none",
                  quote(found.begin()->second->name, found.begin()->second->role),
                  describe(found.begin()->second->dtype, found.begin()->second->shape));
}

void require_model(const CheckpointReader& checkpoint,
                   std::string_view model,
                   std::span<const CheckpointTensor> expected,
                   ModelScope scope) {
  if (scope == ModelScope::kAll) {
    require_state(checkpoint, expected);
  }
  for (const CheckpointTensor& tensor : expected) {
    if (is_looked_at(tensor.role, scope)) {
      require_tensor(checkpoint, tensor);
    }
  }
  require_no_others(checkpoint, expected, scope);
  Difference difference =
      first_difference(Json::parse(checkpoint.meta().model), Json::parse(model));
  if (!difference.place.empty()) {
    difference.place = "model" + difference.place;
    refuse(checkpoint, difference);
  }
}

}  // namespace tessera
