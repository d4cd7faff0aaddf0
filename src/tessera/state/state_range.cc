#include "tessera/state/state_range.h"

#include "tessera/base/error.h"
#include "tessera/ops/collective/collective.h"

namespace tessera {

StateRange range_of(const SlicedPart& part, const TensorType& state) {
  if (state.num_dims() != 1 || state.dims[0].name != kSliceDim) {
    return part.all();
  }
  const std::int64_t size = state.dims[0].bound;
  return part.slice(part.padded() / size, size);
}

StateRange saved_range(const SlicedPart& part) {
  const std::int64_t n = num_ranks(part.axes);
  return n == 1 ? part.all() : part.slice(n, part.padded() / n);
}

std::optional<TensorRole> saved_role(StateRole role) {
  switch (role) {
    case StateRole::kParameter:
      return TensorRole::kParameter;
    case StateRole::kMoment1:
      return TensorRole::kMoment1;
    case StateRole::kMoment2:
      return TensorRole::kMoment2;
    case StateRole::kMaster:
      return TensorRole::kMaster;
    case StateRole::kBuffer:
      return TensorRole::kBuffer;
    case StateRole::kSecondary:
    case StateRole::kGradient:
    case StateRole::kSum:
    case StateRole::kCache:
      return std::nullopt;
  }
  return std::nullopt;
}

const ParameterInit& find_parameter(const std::vector<ParameterInit>& parameters,
                                    const std::string& name) {
  const auto found = std::ranges::find(parameters, name, &ParameterInit::name);
  TESSERA_CHECK(found != parameters.end(), "state of no parameter: {}", name);
  return *found;
}

}  // namespace tessera
