#include "tessera/ops/offload/offload.h"

#include <cstddef>

#include "tessera/base/format.h"

namespace tessera {
namespace {

OpInfo info_of(const char* name, std::int64_t count) {
  const auto tensors = static_cast<std::int32_t>(count);
  return {.name = name, .num_operands = tensors, .num_results = tensors};
}

TensorTypes same_types(Types in) {
  return {in.begin(), in.end()};
}

// Each element stays where it is in its tensor.
FactorRule same_factors(Types in) {
  FactorRule rule;
  for (std::size_t i = 0; i < in.size(); ++i) {
    FactorRule::Factors group;
    for (std::size_t d = 0; d < in[i].num_dims(); ++d) {
      group.push_back(format("x{}_{}", i, d));
    }
    rule.operands.push_back(group);
    rule.results.push_back(std::move(group));
  }
  return rule;
}

}  // namespace

OpInfo info(const FetchAttrs& attrs) {
  return info_of("fetch", attrs.count);
}

TensorTypes infer(const FetchAttrs&, Types in) {
  return same_types(in);
}

FactorRule factors(const FetchAttrs&, Types in) {
  return same_factors(in);
}

Works work(const FetchAttrs&, Types in) {
  return streaming_work(0.0, in, in);
}

void backward(const FetchAttrs&, GradBuilder& grad) {
  grad.none("spaces are chosen once the backward graph is made");
}

void visit(FetchAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("count", attrs.count);
}

OpInfo info(const StoreAttrs& attrs) {
  return info_of("store", attrs.count);
}

TensorTypes infer(const StoreAttrs&, Types in) {
  return same_types(in);
}

FactorRule factors(const StoreAttrs&, Types in) {
  return same_factors(in);
}

Works work(const StoreAttrs&, Types in) {
  return streaming_work(0.0, in, in);
}

void backward(const StoreAttrs&, GradBuilder& grad) {
  grad.none("spaces are chosen once the backward graph is made");
}

void visit(StoreAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("count", attrs.count);
}

}  // namespace tessera
