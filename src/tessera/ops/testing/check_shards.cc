#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/mesh/axes.h"
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

bool is_rewritten(const FactorRule& rule, const std::string& factor) {
  return std::ranges::find(rule.rewrite, factor) != rule.rewrite.end();
}

// Factors that the rule does not want whole.
std::set<std::string> splittable(const FactorRule& rule) {
  std::set<std::string> factors(rule.rewrite.begin(), rule.rewrite.end());
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
    } else if (is_rewritten(rule, factor) || (is_even(rule.operands, sample.operands, factor) &&
                                              is_even(rule.results, results, factor))) {
      split.now.push_back(factor);
    } else {
      split.rest.odd.push_back(factor);
    }
  }
  split.rest.num_split = static_cast<int>(split.now.size());
  return split;
}

// `tensor` with another bound of `dim`: cut, or with zeros behind.
HostTensor resized(const HostTensor& tensor, std::size_t dim, std::int64_t bound) {
  TensorType type = tensor.type();
  type.dims[dim].bound = bound;
  HostTensor result(type);
  const auto rows = static_cast<std::size_t>(type.extent(0, dim));
  if (rows == 0) {
    return result;
  }
  const std::size_t from = tensor.bytes().size() / rows;
  const std::size_t to = result.bytes().size() / rows;
  for (std::size_t row = 0; row < rows; ++row) {
    std::memcpy(
        result.bytes().data() + row * to, tensor.bytes().data() + row * from, std::min(from, to));
  }
  return result;
}

// Half of `tensor` along `dim`, padded where its bound is odd.
HostTensor padded_half(const HostTensor& tensor, std::size_t dim, int half) {
  const std::int64_t bound = tensor.type().dims[dim].bound;
  return half_of(resized(tensor, dim, bound + bound % 2), dim, half);
}

// The inverse of padded_half(); a failure where the padding is not zero.
HostTensor joined_to(const HostTensor& first,
                     const HostTensor& second,
                     std::size_t dim,
                     std::int64_t bound) {
  const HostTensor all = joined(first, second, dim);
  HostTensor result = resized(all, dim, bound);
  TESSERA_CHECK(resized(result, dim, all.type().dims[dim].bound) == all,
                "what lies behind {} elements of {} is not zero",
                bound,
                all.type().dims[dim].name);
  return result;
}

// Operand `index` as shard `half` sees it when `factor` is split.
HostTensor shard_of_operand(const Sample& sample,
                            const FactorRule& rule,
                            std::span<const HostTensor> operands,
                            std::size_t index,
                            const std::string& factor,
                            int half) {
  if (const auto dim = dim_of(rule.operands[index], factor)) {
    return padded_half(operands[index], *dim, half);
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

HostTensor maximum(const HostTensor& a, const HostTensor& b) {
  HostTensor larger = widened(a);
  HostTensor other = widened(b);
  std::ranges::transform(larger.f64(), other.f64(), larger.f64().begin(), [](double x, double y) {
    return std::max(x, y);
  });
  return larger;
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
      const std::int64_t bound = whole.type().dims[*dim].bound;
      compare(index,
              joined_to(halves[0], halves[1], *dim, bound),
              whole,
              limit_of(index, whole),
              failures);
    } else if (is_sum) {
      // The parts may be larger than their sum: they are rounded at their own size.
      Tolerance limit = limit_of(index, whole);
      limit.of_rms += 4 * limit.relative;
      compare(index, sum(halves[0], halves[1]), whole, limit, failures);
    } else if (std::ranges::find(rule_.max, factor_) != rule_.max.end()) {
      compare(index, maximum(halves[0], halves[1]), whole, limit_of(index, whole), failures);
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
    return {.relative = 2 * once.relative,
            .of_rms = 2 * once.of_rms,
            .of_largest = 2 * once.of_largest};
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

using Halves = std::array<std::vector<HostTensor>, 2>;

// Both shards, each on its own.
std::vector<Outcome> execute_apart(const Op& op, const Halves& operands) {
  return {execute(op, operands[0], {}), execute(op, operands[1], {})};
}

// Both shards as ranks that talk, in the form of the op for that.
std::vector<Outcome> execute_together(const Sample& sample,
                                      const std::string& factor,
                                      const Halves& operands) {
  const AxisSizes axes = {{.name = "shards", .size = 2}};
  const OpRef op = rewritten(*sample.op, sample.operands, factor, axes);
  LocalWorld world(2);
  std::vector<Outcome> outcomes(2);
  std::array<std::exception_ptr, 2> errors;
  const auto run = [&](std::size_t rank) {
    const std::unique_ptr<World> self = world.join(static_cast<std::int64_t>(rank));
    try {
      const std::array<std::int64_t, 2> members = {0, 1};
      const std::unique_ptr<Communicator> group = self->group(members);
      outcomes[rank] =
          execute(*op,
                  operands[rank],
                  {.communicator_of = [&](std::string_view, TrafficClass) -> Communicator& {
                    return *group;
                  }});
    } catch (...) {
      errors[rank] = std::current_exception();
      self->abort("the other shard failed");
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
  return outcomes;
}

void check_factor(const Sample& sample,
                  const FactorRule& rule,
                  std::span<const HostTensor> operands,
                  const std::vector<HostTensor>& whole,
                  const std::string& factor,
                  Failures& failures) {
  Halves local;
  for (const int half : {0, 1}) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      local[static_cast<std::size_t>(half)].push_back(
          shard_of_operand(sample, rule, operands, i, factor, half));
    }
  }
  const std::vector<Outcome> shards = is_rewritten(rule, factor)
                                          ? execute_together(sample, factor, local)
                                          : execute_apart(*sample.op, local);
  for (const Outcome& shard : shards) {
    failures.insert(failures.end(), shard.failures.begin(), shard.failures.end());
  }
  const ResultCheck check(sample, rule, factor);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    TensorType local_type = whole[i].type();
    if (const auto dim = dim_of(rule.results[i], factor)) {
      local_type.dims[*dim].bound = (local_type.dims[*dim].bound + 1) / 2;
    }
    if (shards[0].results[i].type() != local_type) {
      failures.push_back(format("split along {}, result {} is {}, expected {}",
                                factor,
                                i,
                                to_string(shards[0].results[i].type()),
                                to_string(local_type)));
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
