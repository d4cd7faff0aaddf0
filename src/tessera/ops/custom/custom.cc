#include "tessera/ops/custom/custom.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

const CustomFacets& facets_of(const CustomOp& op) {
  TESSERA_CHECK(op.facets != nullptr, "a custom op without facets");
  return *op.facets;
}

}  // namespace

OpInfo info(const CustomOp& op) {
  return facets_of(op).op_info();
}

TensorTypes infer(const CustomOp& op, Types in) {
  return facets_of(op).op_infer(in);
}

FactorRule factors(const CustomOp& op, Types in) {
  return facets_of(op).op_factors(in);
}

Works work(const CustomOp& op, Types in) {
  return facets_of(op).op_work(in);
}

void backward(const CustomOp& op, GradBuilder& grad) {
  facets_of(op).op_backward(grad);
}

Collectives collectives(const CustomOp& op, Types in) {
  return facets_of(op).op_collectives(in);
}

OpRef rewritten(const CustomOp& op, Types whole, const AxisSizes& axes) {
  return facets_of(op).op_rewritten(whole, axes);
}

void visit(CustomOp& op, AttrVisitor& visitor) {
  op.facets = facets_of(op).op_clone();
  op.facets->op_visit(visitor);
}

std::int64_t workspace_bytes(const CustomOp& op, cpu::Context& context, Types in) {
  return facets_of(op).op_workspace_bytes(context, in);
}

void run(const CustomOp& op, cpu::Context& context, const Views& views) {
  facets_of(op).op_run(context, views);
}

}  // namespace tessera
