#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/op.h"
#include "tessera/ops/testing/conformance.h"
#include "tessera/ops/testing/execute.h"

namespace tessera::conformance {
namespace {

using Factors = FactorRule::Factors;

// The dim of a tensor that carries `factor`.
std::optional<std::size_t> dim_of(const Factors& dims, const std::string& factor) {
  const auto place = std::ranges::find(dims, factor);
  if (place == dims.end()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(place - dims.begin());
}

// Factors of operands that the rule does not want whole.
std::set<std::string> splittable(const FactorRule& rule) {
  std::set<std::string> factors;
  for (const Factors& operand : rule.operands) {
    factors.insert(operand.begin(), operand.end());
  }
  for (const std::string& factor : rule.whole) {
    factors.erase(factor);
  }
  return factors;
}

bool is_even(const std::vector<Factors>& groups, Types types, const std::string& factor) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto dim = dim_of(groups[i], factor);
    if (dim && types[i].dims[*dim].bound % 2 != 0) {
      return false;
    }
  }
  return true;
}

// The factors of a sample, sorted by what can be done with them.
struct Split {
  std::vector<std::string> now;
  Unsplit rest;
};

Split plan(const Sample& sample, const FactorRule& rule) {
  Split split;
  const TensorTypes results = infer(*sample.op, sample.operands);
  for (const std::string& factor : splittable(rule)) {
    const bool is_excluded = std::ranges::any_of(
        sample.unsplit, [&](const auto& excluded) { return excluded.first == factor; });
    if (is_excluded) {
      split.rest.excluded.push_back(factor);
    } else if (is_even(rule.operands, sample.operands, factor) &&
               is_even(rule.results, results, factor)) {
      split.now.push_back(factor);
    } else {
      split.rest.odd.push_back(factor);
    }
  }
  split.rest.num_split = static_cast<int>(split.now.size());
  return split;
}

// Operand `index` as shard `half` sees it when `factor` is split.
HostTensor shard_of_operand(const Sample& sample,
                            const FactorRule& rule,
                            std::span<const HostTensor> operands,
                            std::size_t index,
                            const std::string& factor,
                            int half) {
  if (const auto dim = dim_of(rule.operands[index], factor)) {
    return half_of(operands[index], *dim, half);
  }
  const bool is_addend =
      std::ranges::find(sample.addends, static_cast<std::int32_t>(index)) != sample.addends.end();
  const bool is_sum = std::ranges::find(rule.reduce, factor) != rule.reduce.end();
  return is_addend && is_sum && half == 1 ? HostTensor(operands[index].type()) : operands[index];
}

HostTensor sum(const HostTensor& a, const HostTensor& b) {
  HostTensor total = widened(a);
  HostTensor other = widened(b);
  if (total.type().dtype == DType::kI64) {
    std::ranges::transform(total.i64(), other.i64(), total.i64().begin(), std::plus<>());
  } else {
    std::ranges::transform(total.f64(), other.f64(), total.f64().begin(), std::plus<>());
  }
  return total;
}

// Compares one result of the shards with that of the whole.
class ResultCheck {
 public:
  ResultCheck(const Sample& sample, const FactorRule& rule, const std::string& factor)
      : sample_(sample), rule_(rule), factor_(factor) {}

  void run(std::size_t index,
           const std::vector<HostTensor>& halves,
           const HostTensor& whole,
           Failures& failures) const {
    const auto dim = dim_of(rule_.results[index], factor_);
    const bool is_sum = std::ranges::find(rule_.reduce, factor_) != rule_.reduce.end();
    if (dim) {
      compare(index, joined(halves[0], halves[1], *dim), whole, limit_of(index, whole), failures);
    } else if (is_sum) {
      // The parts may be larger than their sum: they are rounded at their own size.
      Tolerance limit = limit_of(index, whole);
      limit.of_rms += 4 * limit.relative;
      compare(index, sum(halves[0], halves[1]), whole, limit, failures);
    } else {  // each shard has all of it
      compare(index, halves[0], whole, limit_of(index, whole), failures);
      compare(index, halves[1], whole, limit_of(index, whole), failures);
    }
  }

 private:
  bool is_encoded(const HostTensor& whole) const {
    return sample_.decode && !is_floating(whole.type().dtype);
  }

  // Twice the kernel's own: the whole and the halves are both rounded.
  Tolerance limit_of(std::size_t index, const HostTensor& whole) const {
    const OpClass op_class =
        index < sample_.result_classes.size() ? sample_.result_classes[index] : sample_.op_class;
    const Tolerance once =
        tolerance(op_class, is_encoded(whole) ? DType::kF32 : whole.type().dtype);
    return {.relative = 2 * once.relative, .of_rms = 2 * once.of_rms};
  }

  void compare(std::size_t index,
               const HostTensor& found,
               const HostTensor& whole,
               const Tolerance& limit,
               Failures& failures) const {
    const auto wrong = is_encoded(whole)
                           ? difference(sample_.decode(found), sample_.decode(whole), limit)
                           : difference(found, widened(whole), limit);
    if (wrong) {
      failures.push_back(format("split along {}, result {}: {}", factor_, index, *wrong));
    }
  }

  const Sample& sample_;
  const FactorRule& rule_;
  const std::string& factor_;
};

void check_factor(const Sample& sample,
                  const FactorRule& rule,
                  std::span<const HostTensor> operands,
                  const std::vector<HostTensor>& whole,
                  const std::string& factor,
                  Failures& failures) {
  std::vector<Outcome> shards;
  for (const int half : {0, 1}) {
    std::vector<HostTensor> local;
    local.reserve(operands.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
      local.push_back(shard_of_operand(sample, rule, operands, i, factor, half));
    }
    shards.push_back(execute(*sample.op, local, {}));
  }
  const ResultCheck check(sample, rule, factor);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    TensorType local = whole[i].type();
    if (const auto dim = dim_of(rule.results[i], factor)) {
      local.dims[*dim].bound /= 2;
    }
    if (shards[0].results[i].type() != local) {
      failures.push_back(format("split along {}, result {} is {}, expected {}",
                                factor,
                                i,
                                to_string(shards[0].results[i].type()),
                                to_string(local)));
      continue;
    }
    check.run(i, {shards[0].results[i], shards[1].results[i]}, whole[i], failures);
  }
}

}  // namespace

Failures check_shards(const Sample& sample) {
  Failures failures;
  const FactorRule rule = factors(*sample.op, sample.operands);
  const std::vector<HostTensor> operands = make_operands(sample);
  const std::vector<HostTensor> whole = execute(*sample.op, operands, {}).results;
  for (const std::string& factor : plan(sample, rule).now) {
    try {
      check_factor(sample, rule, operands, whole, factor, failures);
    } catch (const Error& error) {
      failures.push_back(format("split along {}: {}", factor, error.what()));
    }
  }
  return failures;
}

Unsplit unsplit_factors(const Sample& sample) {
  return plan(sample, factors(*sample.op, sample.operands)).rest;
}

}  // namespace tessera::conformance
