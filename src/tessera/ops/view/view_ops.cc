#include "tessera/ops/view/view_ops.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::size_t checked_dim(std::int64_t dim, const TensorType& type) {
  TESSERA_REQUIRE(dim >= 0 && dim < static_cast<std::int64_t>(type.num_dims()),
                  ErrorCode::kInvalidArgument,
                  "dim {} of {}",
                  dim,
                  to_string(type));
  return static_cast<std::size_t>(dim);
}

// One name a dim; dim `dim` is called `name` instead.
std::string factors_with(const TensorType& type, std::int64_t dim, std::string_view name) {
  std::string text;
  for (std::size_t i = 0; i < type.num_dims(); ++i) {
    text += i == 0 ? "" : " ";
    text += static_cast<std::int64_t>(i) == dim ? std::string(name)
                                                : factor_names(1, static_cast<char>('a' + i));
  }
  return text;
}

}  // namespace

OpInfo info(const SliceAttrs&) {
  return {.name = "slice", .num_operands = 1, .view = ViewKind::kSlice};
}

TensorTypes infer(const SliceAttrs& attrs, Types in) {
  require_dims(in, 0, -1);
  Dim dim = in[0].dims[checked_dim(attrs.dim, in[0])];
  TESSERA_REQUIRE(attrs.begin >= 0 && attrs.size > 0 && attrs.begin + attrs.size <= dim.bound,
                  ErrorCode::kInvalidArgument,
                  "slice [{}, {}) of dim {} of {}",
                  attrs.begin,
                  attrs.begin + attrs.size,
                  attrs.dim,
                  to_string(in[0]));
  dim.bound = attrs.size;
  if (!attrs.name.empty()) {
    dim.name = attrs.name;
  }
  TensorType result = in[0];
  result.dims[static_cast<std::size_t>(attrs.dim)] = dim;
  return {result};
}

FactorRule factors(const SliceAttrs& attrs, Types in) {
  return parse_factor_rule(format("({}) -> ({}) | whole from, to",
                                  factors_with(in[0], attrs.dim, "from"),
                                  factors_with(in[0], attrs.dim, "to")));
}

Works work(const SliceAttrs&, Types) {
  return {};
}

void backward(const SliceAttrs&, GradBuilder& grad) {
  grad.none("views are made after differentiation");
}

void visit(SliceAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("dim", attrs.dim);
  visitor.field("begin", attrs.begin);
  visitor.field("size", attrs.size);
  visitor.field("name", attrs.name);
}

OpInfo info(const ConcatAttrs& attrs) {
  return {.name = "concat",
          .num_operands = static_cast<std::int32_t>(attrs.num_operands),
          .view = ViewKind::kConcat};
}

TensorTypes infer(const ConcatAttrs& attrs, Types in) {
  require_dims(in, 0, -1);
  const std::size_t dim = checked_dim(attrs.dim, in[0]);
  TensorType result = in[0];
  for (std::size_t i = 1; i < in.size(); ++i) {
    require_dtype(in, i, in[0].dtype);
    require_dims(in, i, static_cast<int>(in[0].num_dims()));
    result.dims[dim].bound += in[i].dims[dim].bound;
    TensorType same = in[i];
    same.dims[dim] = in[0].dims[dim];
    const TensorTypes pair = {in[0], same};
    require_same_shape(pair, 0, 1);
  }
  if (!attrs.name.empty()) {
    result.dims[dim].name = attrs.name;
  }
  return {result};
}

FactorRule factors(const ConcatAttrs& attrs, Types in) {
  std::string operands;
  std::string whole = "to";
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::string part = format("from{}", i);
    operands += format("{}({})", i == 0 ? "" : ", ", factors_with(in[i], attrs.dim, part));
    whole += ", " + part;
  }
  return parse_factor_rule(
      format("{} -> ({}) | whole {}", operands, factors_with(in[0], attrs.dim, "to"), whole));
}

Works work(const ConcatAttrs&, Types) {
  return {};
}

void backward(const ConcatAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < attrs.num_operands; ++i) {
    const Dim& part =
        grad.operand(static_cast<std::size_t>(i)).type().dims[static_cast<std::size_t>(attrs.dim)];
    if (grad.start(static_cast<std::size_t>(i))) {
      const SliceAttrs slice{
          .dim = attrs.dim, .begin = begin, .size = part.bound, .name = part.name};
      grad.set(static_cast<std::size_t>(i), dy->builder->emit(make_op(slice), {*dy})[0]);
    }
    begin += part.bound;
  }
}

void visit(ConcatAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("num_operands", attrs.num_operands);
  visitor.field("dim", attrs.dim);
  visitor.field("name", attrs.name);
}

}  // namespace tessera
