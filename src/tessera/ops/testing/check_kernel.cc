#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/conformance.h"
#include "tessera/ops/testing/execute.h"

namespace tessera::conformance {
namespace {

// Every set of the op's free aliases in which no memory is written by two results.
std::vector<std::vector<Alias>> alias_sets(const OpInfo& facts) {
  std::vector<Alias> free;
  std::ranges::copy_if(
      facts.aliases, std::back_inserter(free), [](const Alias& alias) { return !alias.required; });
  std::vector<std::vector<Alias>> sets;
  for (std::size_t mask = 1; mask < (std::size_t{1} << free.size()); ++mask) {
    std::vector<Alias> set;
    bool possible = true;
    for (std::size_t i = 0; i < free.size(); ++i) {
      if ((mask >> i & 1U) == 0) {
        continue;
      }
      possible = possible && std::ranges::none_of(set, [&](const Alias& other) {
                   return other.result == free[i].result || other.operand == free[i].operand;
                 });
      set.push_back(free[i]);
    }
    if (possible) {
      sets.push_back(std::move(set));
    }
  }
  return sets;
}

// Whether all results of both runs are the same bits.
void require_same_bits(const Outcome& found,
                       const Outcome& expected,
                       const std::string& when,
                       Failures& failures) {
  for (std::size_t i = 0; i < expected.results.size(); ++i) {
    if (found.results[i] != expected.results[i]) {
      failures.push_back(format("result {} changes {}: {}",
                                i,
                                when,
                                difference(found.results[i], widened(expected.results[i]), {})
                                    .value_or("in NaNs alone")));
    }
  }
  for (const std::string& failure : found.failures) {
    failures.push_back(format("{} ({})", failure, when));
  }
}

std::vector<HostTensor> expected_results(const Sample& sample,
                                         std::span<const HostTensor> operands) {
  std::vector<HostTensor> wide;
  std::ranges::transform(operands, std::back_inserter(wide), widened);
  return reference_results(*sample.op, sample.operands, wide, sample.custom_references);
}

// What is expected of a sample, and the root mean square of each result: over more draws where one
// that is no scalar has few elements, which may happen to be small beside what they are made of.
struct Expected {
  std::vector<HostTensor> results;
  std::vector<double> rms;

  Expected(const Sample& sample, std::span<const HostTensor> operands)
      : results(expected_results(sample, operands)) {
    constexpr double kEnough = 256;
    constexpr std::uint64_t kMostDraws = 32;
    std::vector<Squares> squares(results.size());
    const auto add = [&](const std::vector<HostTensor>& drawn) {
      bool are_enough = true;
      for (std::size_t i = 0; i < drawn.size(); ++i) {
        squares[i].add(drawn[i]);
        are_enough = are_enough && (squares[i].count >= kEnough || drawn[i].type().num_dims() == 0);
      }
      return are_enough;
    };
    bool are_enough = add(results);
    for (std::uint64_t draw = 1; draw < kMostDraws && !are_enough; ++draw) {
      are_enough = add(expected_results(sample, make_operands(sample, draw)));
    }
    std::ranges::transform(squares, std::back_inserter(rms), &Squares::root_mean);
  }
};

void compare_with_reference(const Sample& sample,
                            std::span<const OpClass> classes,
                            const Outcome& outcome,
                            const Expected& expected,
                            Failures& failures) {
  for (std::size_t i = 0; i < expected.results.size(); ++i) {
    if (std::ranges::any_of(sample.parts, [&](const Part& part) {
          return std::ranges::count(part.results, i) > 0;
        })) {
      continue;
    }
    const OpClass op_class = i < classes.size() ? classes[i] : sample.op_class;
    const bool is_encoded = sample.decode && !is_floating(expected.results[i].type().dtype);
    const auto wrong = is_encoded ? difference(sample.decode(outcome.results[i]),
                                               sample.decode(expected.results[i]),
                                               tolerance(op_class, DType::kF32))
                                  : difference(outcome.results[i],
                                               expected.results[i],
                                               tolerance(op_class, outcome.results[i].type().dtype),
                                               expected.rms[i]);
    if (wrong) {
      failures.push_back(format("result {}: {}", i, *wrong));
    }
  }
}

// What other ops make of `outcome`'s results is what it has.
void compare_with_parts(const Sample& sample, const Outcome& outcome, Failures& failures) {
  for (const Part& part : sample.parts) {
    std::vector<HostTensor> operands;
    for (const std::size_t operand : part.operands) {
      operands.push_back(outcome.results[operand]);
    }
    const Outcome made = execute(*part.op, operands, {});
    for (std::size_t i = 0; i < part.results.size(); ++i) {
      const HostTensor& found = outcome.results[part.results[i]];
      if (found != made.results[i]) {
        failures.push_back(
            format("result {} is not what {} makes: {}",
                   part.results[i],
                   to_string(*part.op),
                   difference(found, widened(made.results[i]), {}).value_or("in NaNs alone")));
      }
    }
  }
}

std::string describe_aliases(std::span<const Alias> aliases) {
  std::string text;
  for (const Alias& alias : aliases) {
    text += format(
        "{}result {} over operand {}", text.empty() ? "with " : ", ", alias.result, alias.operand);
  }
  return text;
}

// `bases` are whole, without aliases.
Failures check_executions(const Sample& sample, std::span<const Execution> bases) {
  Failures failures;
  const Op& op = *sample.op;
  const std::vector<HostTensor> operands = make_operands(sample);
  const Expected expected(sample, operands);
  for (const Execution& base : bases) {
    const Outcome plain = execute(op, operands, base);
    failures.insert(failures.end(), plain.failures.begin(), plain.failures.end());
    const bool on_device = base.backend != nullptr && !sample.device_classes.empty();
    const std::vector<OpClass>& classes = on_device ? sample.device_classes : sample.result_classes;
    compare_with_reference(sample, classes, plain, expected, failures);
    compare_with_parts(sample, plain, failures);
    const auto require_same = [&](const auto& change, const std::string& when) {
      Execution other = base;
      change(other);
      require_same_bits(execute(op, operands, other), plain, when, failures);
    };
    require_same([](Execution& other) { other.poison = std::byte{0x3C}; },
                 "with what its memory held before");
    for (const std::vector<Alias>& set : alias_sets(info(op))) {
      require_same([&](Execution& other) { other.aliases = set; }, describe_aliases(set));
    }
    if (sample.sliced_dim >= 0) {
      require_same([&](Execution& other) { other.sliced_dim = sample.sliced_dim; },
                   format("on slices of dim {}", sample.sliced_dim));
    }
  }
  return failures;
}

}  // namespace

Failures check_kernel(const Sample& sample) {
  return check_executions(sample, std::array<Execution, 2>{{{.threads = 1}, {.threads = 3}}});
}

Failures check_kernel_on(Backend& backend, const Sample& sample) {
  return check_executions(sample, std::array<Execution, 1>{{{.backend = &backend}}});
}

}  // namespace tessera::conformance
