#include "tessera/ops/op.h"

#include <set>

#include "tessera/base/error.h"

namespace tessera {
namespace {

const TensorType& operand(Types operands, std::size_t index) {
  TESSERA_REQUIRE(index < operands.size(),
                  ErrorCode::kInvalidArgument,
                  "operand {} is missing: found {}",
                  index,
                  operands.size());
  return operands[index];
}

}  // namespace

std::string_view name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kRingShift:
      return "ring_shift";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kReceive:
      return "receive";
  }
  return "unknown collective";
}

FactorRule with_results(FactorRule rule, const std::vector<FactorRule::Factors>& more) {
  std::set<std::string> names;
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const FactorRule::Factors& tensor : *tensors) {
      names.insert(tensor.begin(), tensor.end());
    }
  }
  rule.whole.assign(names.begin(), names.end());
  rule.reduce.clear();
  rule.max.clear();
  rule.rewrite.clear();
  rule.results.insert(rule.results.end(), more.begin(), more.end());
  return rule;
}

void require_dims(Types operands, std::size_t index, int num_dims) {
  const TensorType& type = operand(operands, index);
  TESSERA_REQUIRE(num_dims < 0 || type.num_dims() == static_cast<std::size_t>(num_dims),
                  ErrorCode::kInvalidArgument,
                  "operand {} is {}, expected {} dims",
                  index,
                  to_string(type),
                  num_dims);
}

void require_float(Types operands, std::size_t index) {
  const TensorType& type = operand(operands, index);
  TESSERA_REQUIRE(is_floating(type.dtype),
                  ErrorCode::kInvalidArgument,
                  "operand {} is {}, expected a floating-point dtype",
                  index,
                  to_string(type));
}

void require_dtype(Types operands, std::size_t index, DType dtype) {
  const TensorType& type = operand(operands, index);
  TESSERA_REQUIRE(type.dtype == dtype,
                  ErrorCode::kInvalidArgument,
                  "operand {} is {}, expected {}",
                  index,
                  to_string(type),
                  name(dtype));
}

void require_same_shape(Types operands, std::size_t a, std::size_t b) {
  const TensorType& first = operand(operands, a);
  const TensorType& second = operand(operands, b);
  bool same = first.num_dims() == second.num_dims();
  for (std::size_t i = 0; same && i < first.num_dims(); ++i) {
    same = first.dims[i].bound == second.dims[i].bound;
  }
  TESSERA_REQUIRE(same,
                  ErrorCode::kInvalidArgument,
                  "operand {} is {} and operand {} is {}, expected equal shapes",
                  a,
                  to_string(first),
                  b,
                  to_string(second));
}

void require_vocab_shard(const AxisSizes& axes, std::int64_t whole, std::int64_t bound) {
  const std::int64_t ranks = num_ranks(axes);
  TESSERA_REQUIRE(axes.empty() ? whole == 0 : whole > 0 && whole <= ranks * bound,
                  ErrorCode::kInvalidArgument,
                  "{} entries of a vocabulary of {} on each of {} ranks",
                  bound,
                  whole,
                  ranks);
}

TensorType with_dtype(TensorType type, DType dtype) {
  type.dtype = dtype;
  return type;
}

TensorType scalar_type(DType dtype) {
  return {.dtype = dtype, .dims = {}};
}

}  // namespace tessera
