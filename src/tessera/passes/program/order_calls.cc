#include "tessera/passes/program/order_calls.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// The variants of a code.
struct Variants {
  SegmentId first;
  SegmentId later = {};
};

std::map<Code, Variants> find_variants(const Program& program) {
  std::map<Code, Variants> found;
  for (const Call& call : program.calls) {
    found.try_emplace(program[call.segment].code, Variants{.first = call.segment})
        .first->second.later = call.segment;
  }
  return found;
}

}  // namespace

bool splits_backward(std::span<const WorkStep> order) {
  return std::ranges::any_of(
      order, [](const WorkStep& step) { return step.code.action == Action::kWeightGradient; });
}

Program order_calls(Program program, std::span<const WorkStep> order) {
  const std::map<Code, Variants> variants = find_variants(program);
  std::set<Code> called;
  std::set<std::pair<Code, std::int32_t>> steps;
  std::vector<Call> calls;
  std::ranges::copy_if(program.calls, std::back_inserter(calls), [&](const Call& call) {
    return program[call.segment].code.action == Action::kStart;
  });
  for (const WorkStep& step : order) {
    const auto found = variants.find(step.code);
    if (found == variants.end()) {
      continue;
    }
    TESSERA_CHECK(step.microbatch >= 0 && step.microbatch < program.num_microbatches &&
                      steps.insert({step.code, step.microbatch}).second,
                  "{} of microbatch {} of {} comes twice, or is none",
                  to_string(step.code),
                  step.microbatch,
                  program.num_microbatches);
    const bool is_first = called.insert(step.code).second;
    calls.push_back({.segment = is_first ? found->second.first : found->second.later,
                     .microbatch = step.microbatch});
  }
  for (const Call& call : program.calls) {
    const Code& code = program[call.segment].code;
    if (code.action == Action::kUpdate) {
      calls.push_back(call);
    } else if (code.action != Action::kStart) {
      TESSERA_CHECK(steps.contains({code, call.microbatch}),
                    "{} of microbatch {} is missing in the order of calls",
                    to_string(code),
                    call.microbatch);
    }
  }
  program.calls = std::move(calls);
  return program;
}

}  // namespace tessera
