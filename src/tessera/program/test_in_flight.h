#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/program/program.h"

namespace tessera {

// In which order forwards (true) and backwards (false) are called.
using CallOrder = std::vector<bool>;

// One forward, one backward, with so many microbatches in flight, as on a pipeline's first rank.
inline CallOrder one_forward_one_backward(std::int64_t microbatches, std::int64_t in_flight) {
  const std::int64_t ahead = std::min(in_flight, microbatches);
  CallOrder order(static_cast<std::size_t>(ahead), true);
  for (std::int64_t i = 0; i < microbatches; ++i) {
    order.push_back(false);
    if (i + ahead < microbatches) {
      order.push_back(true);
    }
  }
  return order;
}

// For tests: the forwards and backwards of lower() in this order, each by rising microbatches, then
// what comes after them. Slots are left to assign_slots().
inline void call_in_order(Program& program, const CallOrder& order) {
  std::vector<Call> forwards;
  std::vector<Call> backwards;
  std::vector<Call> rest;
  for (const Call& call : program.calls) {
    const Action action = program[call.segment].code.action;
    (action == Action::kForward    ? forwards
     : action == Action::kBackward ? backwards
                                   : rest)
        .push_back(call);
  }
  TESSERA_CHECK(order.size() == forwards.size() + backwards.size(),
                "an order of {} calls for {} and {}",
                order.size(),
                forwards.size(),
                backwards.size());
  program.calls.clear();
  std::size_t forward = 0;
  std::size_t backward = 0;
  for (const bool is_forward : order) {
    program.calls.push_back(is_forward ? forwards.at(forward++) : backwards.at(backward++));
  }
  program.calls.insert(program.calls.end(), rest.begin(), rest.end());
}

}  // namespace tessera
