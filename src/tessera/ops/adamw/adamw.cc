#include "tessera/ops/adamw/adamw.h"

#include <cstddef>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/ops/adamw/adamw_operands.h"
#include "tessera/ops/in_order.h"

namespace tessera {

OpInfo info(const AdamwAttrs& attrs) {
  const std::int32_t states = attrs.master ? 4 : 3;  // parameter, m, v, [master]
  OpInfo result{.name = "adamw", .num_operands = states + 5, .num_results = states};
  for (std::int32_t i = 0; i < states; ++i) {
    // Operand 1 is the gradient.
    result.aliases.push_back({.result = i, .operand = i == 0 ? 0 : i + 1, .required = true});
  }
  return result;
}

TensorTypes infer(const AdamwAttrs& attrs, Types in) {
  const std::size_t scalars = attrs.master ? 5 : 4;
  for (std::size_t i = 1; i < scalars; ++i) {
    require_same_shape(in, 0, i);
  }
  TESSERA_REQUIRE(
      in[2].dtype == in[3].dtype && (in[2].dtype == DType::kF32 || in[2].dtype == DType::kBF16),
      ErrorCode::kInvalidArgument,
      "moments {} and {}, expected both f32 or both bf16",
      to_string(in[2]),
      to_string(in[3]));
  if (attrs.master) {
    require_dtype(in, 4, DType::kF32);
  }
  TESSERA_REQUIRE(attrs.master == (in[0].dtype != DType::kF32),
                  ErrorCode::kInvalidArgument,
                  "parameter {} {} an f32 master",
                  to_string(in[0]),
                  attrs.master ? "must not have" : "needs");
  for (std::size_t i = scalars; i < scalars + 4; ++i) {
    require_dims(in, i, 0);
    require_dtype(in, i, DType::kF32);
  }
  TensorTypes results = {in[0], in[2], in[3]};
  if (attrs.master) {
    results.push_back(in[4]);
  }
  return results;
}

FactorRule factors(const AdamwAttrs& attrs, Types in) {
  const std::string names = factor_names(in[0].num_dims());
  std::string operands;
  std::string results;
  for (int i = 0; i < (attrs.master ? 5 : 4); ++i) {
    operands += format("({}), ", names);
    results += i == 0 ? "" : format("{}({})", i == 1 ? "" : ", ", names);
  }
  return parse_factor_rule(format("{}(), (), (), () -> {}", operands, results));
}

Works work(const AdamwAttrs& attrs, Types in) {
  return elementwise_work(16.0, in, infer(attrs, in));
}

void backward(const AdamwAttrs&, GradBuilder& grad) {
  grad.none("the update is not part of the loss");
}

void visit(AdamwAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("beta1", attrs.beta1);
  visitor.field("beta2", attrs.beta2);
  visitor.field("eps", attrs.eps);
  visitor.field("weight_decay", attrs.weight_decay);
  visitor.field("master", attrs.master);
}

AdamwOperands by_name(const AdamwAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.parameter = in.next(),
          .gradient = in.next(),
          .m = in.next(),
          .v = in.next(),
          .master = in.next_if(attrs.master),
          .lr = in.next(),
          .t = in.next(),
          .scale = in.next(),
          .apply = in.next(),
          .new_parameter = out.next(),
          .new_m = out.next(),
          .new_v = out.next(),
          .new_master = out.next_if(attrs.master)};
}

AdamwOperands by_name_in_place(const AdamwAttrs& attrs, const Views& views) {
  const AdamwOperands of = by_name(attrs, views);
  const void* const updated[] = {of.parameter.data, of.m.data, of.v.data, of.master.data};
  const void* const results[] = {
      of.new_parameter.data, of.new_m.data, of.new_v.data, of.new_master.data};
  for (std::size_t i = 0; i < std::size(updated); ++i) {
    TESSERA_CHECK(results[i] == updated[i], "adamw updates result {} in place", i);
  }
  return of;
}

}  // namespace tessera
