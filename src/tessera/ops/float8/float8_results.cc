#include "tessera/ops/float8/float8_results.h"

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/float8/float8.h"

namespace tessera {

QuantizeFloat8Attrs code_attrs(const Float8Results& wanted) {
  return {.dtype = wanted.dtype, .power_of_two = true, .amax = true};
}

void append_types(const Float8Results& wanted, const TensorType& y, TensorTypes& types) {
  TESSERA_REQUIRE(!wanted.amax || !wanted.codes,
                  ErrorCode::kInvalidArgument,
                  "one scale for all of {} and one for each row are asked for",
                  to_string(y));
  const TensorTypes in = {y};
  TensorTypes made;
  if (wanted.amax) {
    made = {kMagnitude};
  } else if (wanted.codes) {
    made = infer(code_attrs(wanted), in);
  }
  types.insert(types.end(), made.begin(), made.end());
}

FactorRule with_float8(const Float8Results& wanted, FactorRule rule, std::size_t count) {
  if (wanted.count() == 0) {
    return rule;
  }
  std::vector<FactorRule::Factors> more;
  for (std::size_t i = 0; i < count; ++i) {
    const FactorRule::Factors& y = rule.results[i];
    if (wanted.amax) {
      more.emplace_back();
    } else {
      more.push_back(y);
      more.emplace_back(y.begin(), y.end() - 1);
    }
  }
  return with_results(std::move(rule), more);
}

Views float8_views(const Float8Results& wanted, const View& y, std::span<const View> results) {
  return {.in = std::span(&y, 1),
          .out = results.last(static_cast<std::size_t>(wanted.count())),
          .workspace = {}};
}

void visit(Float8Results& wanted, AttrVisitor& visitor) {
  visitor.field("amax", wanted.amax);
  visitor.field("codes", wanted.codes);
  visitor.field("dtype", wanted.dtype);
}

}  // namespace tessera
