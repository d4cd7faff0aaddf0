#include "tessera/ops/write_rows/write_rows.h"

#include "tessera/base/error.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/write_rows/write_rows_operands.h"

namespace tessera {

OpInfo info(const WriteRowsAttrs&) {
  return {.name = "write_rows",
          .num_operands = 3,
          .aliases = {{.result = 0, .operand = 0, .required = true}}};
}

TensorTypes infer(const WriteRowsAttrs&, Types in) {
  const TensorType& cache = in[0];
  const TensorType& x = in[1];
  require_dims(in, 0, 4);
  require_dims(in, 1, 4);
  require_float(in, 0);
  require_dtype(in, 1, cache.dtype);
  require_dims(in, 2, 2);
  require_dtype(in, 2, DType::kI32);
  bool fits = in[2].dims[0].bound == x.dims[0].bound && in[2].dims[1].bound == x.dims[1].bound;
  for (const std::size_t dim : {0U, 2U, 3U}) {
    fits = fits && cache.dims[dim].bound == x.dims[dim].bound;
  }
  TESSERA_REQUIRE(fits,
                  ErrorCode::kInvalidArgument,
                  "rows {} at {} for a cache {}: all dims but the second must be equal, and each "
                  "row must have a slot",
                  to_string(x),
                  to_string(in[2]),
                  to_string(cache));
  return {cache};
}

FactorRule factors(const WriteRowsAttrs&, Types) {
  return parse_factor_rule("(b s h c), (b t h c), (b t) -> (b s h c) | whole s, t");
}

Works work(const WriteRowsAttrs&, Types in) {
  Work scatter{.kind = WorkKind::kGather, .dtype = in[0].dtype};
  count_bytes(scatter, in.subspan(1), in.subspan(1, 1));
  return {scatter};
}

void backward(const WriteRowsAttrs&, GradBuilder& grad) {
  grad.none("write_rows serves generation; training keeps no rows from step to step");
}

void visit(WriteRowsAttrs&, AttrVisitor&) {}

WriteRowsOperands by_name(const WriteRowsAttrs& /*attrs*/, const Views& views) {
  InOrder in(views.in);
  return {.cache = in.next(), .x = in.next(), .slots = in.next(), .y = InOrder(views.out).next()};
}

}  // namespace tessera
