#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tessera/base/format.h"
#include "tessera/ops/op.h"
#include "tessera/ops/testing/conformance.h"

namespace tessera::conformance {
namespace {

using Factors = FactorRule::Factors;

bool contains(const Factors& factors, const std::string& name) {
  return std::ranges::find(factors, name) != factors.end();
}

// What the rule says of one factor over all operands or all results.
struct Use {
  std::set<std::int64_t> bounds;
  std::size_t num_operands = 0;
  std::size_t num_results = 0;
};

// Adds each tensor's factors to `uses`, and what does not fit its type to `failures`.
void collect(const std::vector<Factors>& groups,
             Types types,
             std::size_t Use::* count,
             std::map<std::string, Use>& uses,
             Failures& failures) {
  const std::string what = count == &Use::num_operands ? "operand" : "result";
  if (groups.size() != types.size()) {
    failures.push_back(format("the rule has {} {}s, found {}", groups.size(), what, types.size()));
    return;
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].size() != types[i].num_dims()) {
      failures.push_back(format(
          "the rule gives {} {} {} dims: {}", what, i, groups[i].size(), to_string(types[i])));
      continue;
    }
    for (std::size_t dim = 0; dim < groups[i].size(); ++dim) {
      const std::string& factor = groups[i][dim];
      uses[factor].bounds.insert(types[i].dims[dim].bound);
      uses[factor].*count += 1;
      if (std::ranges::count(groups[i], factor) != 1) {
        failures.push_back(format("{} {} has factor {} twice", what, i, factor));
      }
    }
  }
}

void check_use(const Sample& sample,
               const FactorRule& rule,
               const std::string& factor,
               const Use& use,
               Failures& failures) {
  const bool is_reduced = contains(rule.reduce, factor) || contains(rule.max, factor);
  const bool is_whole = contains(rule.whole, factor);
  const bool is_grouped = contains(sample.grouped_factors, factor);
  const bool is_multiple = std::ranges::all_of(
      use.bounds, [&](std::int64_t bound) { return bound % *use.bounds.begin() == 0; });
  if (is_grouped ? !is_multiple : use.bounds.size() != 1) {
    failures.push_back(format("dims of factor {} have {} bounds", factor, use.bounds.size()));
  }
  if (is_reduced && is_whole) {
    failures.push_back(format("factor {} is both reduced and whole", factor));
  }
  if (use.num_operands == 0 && !is_whole && !contains(rule.rewrite, factor)) {
    failures.push_back(format("factor {} is in no operand, and yet not whole", factor));
  }
  if (is_whole && contains(rule.rewrite, factor)) {
    failures.push_back(format("factor {} is both whole and rewritten", factor));
  }
  if (is_reduced && (use.num_operands == 0 || use.num_results == rule.results.size())) {
    failures.push_back(
        format("reduced factor {} must be in an operand and not in all results", factor));
  }
}

// Of a kernel of the sample's op.
void check_work(const Work& work, Failures& failures) {
  for (const double number :
       {flop(work), work.elementwise_flop, work.bytes_read, work.bytes_written, work.bytes_again}) {
    if (!std::isfinite(number) || number < 0) {
      failures.push_back(format("work: {}", number));
    }
  }
  const bool is_product = work.kind == WorkKind::kProduct;
  const bool is_attention =
      work.kind == WorkKind::kAttention || work.kind == WorkKind::kAttentionBackward;
  const std::int64_t sums = work.m * work.n * work.batch;
  if (is_product || is_attention ? sums * work.k < 1 : sums * work.k != 0) {
    failures.push_back(format("work: {} x {} x {}, {} times", work.m, work.n, work.k, work.batch));
  }
  if (is_attention && !(work.pairs > 0.0 && work.pairs <= static_cast<double>(sums))) {
    failures.push_back(format("work: {} pairs of {}", work.pairs, sums));
  }
  if (is_product != (work.row_bytes > 0) || work.times < 1) {
    failures.push_back(format("work: rows of {} B, {} times", work.row_bytes, work.times));
  }
}

}  // namespace

Failures check_factors(const Sample& sample) {
  Failures failures;
  const FactorRule rule = factors(*sample.op, sample.operands);
  if (parse_factor_rule(to_string(rule)) != rule) {
    failures.push_back(format("the rule \"{}\" does not parse back", to_string(rule)));
  }
  std::map<std::string, Use> uses;
  collect(rule.operands, sample.operands, &Use::num_operands, uses, failures);
  collect(rule.results, infer(*sample.op, sample.operands), &Use::num_results, uses, failures);
  for (const auto& [factor, use] : uses) {
    check_use(sample, rule, factor, use, failures);
  }
  for (const Factors* names : {&rule.reduce, &rule.max, &rule.whole, &rule.rewrite}) {
    for (const std::string& factor : *names) {
      if (!uses.contains(factor)) {
        failures.push_back(format("factor {} is in no tensor", factor));
      }
    }
  }
  const Works works = work(*sample.op, sample.operands);
  for (const Work& part : works) {
    check_work(part, failures);
  }
  const auto wires = std::ranges::count(works, WorkKind::kWire, &Work::kind);
  std::int64_t calls = 0;
  for (const CollectiveUse& use : collectives(*sample.op, sample.operands)) {
    calls += use.count;
  }
  if (wires == 0 ? calls > 0 : calls % wires != 0) {
    failures.push_back(format("{} wires for {} calls of collectives", wires, calls));
  }
  return failures;
}

namespace {

std::string join(Types types) {
  std::string text;
  for (const TensorType& type : types) {
    text += format("{}{}", text.empty() ? "" : ", ", to_string(type));
  }
  return text;
}

}  // namespace

std::string describe(const Sample& sample) {
  const Cost price = cost(*sample.op, sample.operands);
  return format(
      "{}\n  types    {} -> {}\n  factors  {}\n  cost     {} flop, reads {} B, writes {} B\n",
      to_string(*sample.op),
      join(sample.operands),
      join(infer(*sample.op, sample.operands)),
      to_string(factors(*sample.op, sample.operands)),
      price.flop,
      price.bytes_read,
      price.bytes_written);
}

Failures check_op(const Sample& sample) {
  Failures all;
  for (const auto check :
       {check_attributes, check_factors, check_kernel, check_gradient, check_shards}) {
    for (const std::string& failure : check(sample)) {
      all.push_back(format("{}: {}", full_name(sample), failure));
    }
  }
  return all;
}

}  // namespace tessera::conformance
