#include "tessera/passes/program/overlap/waits.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

// The first place that must wait for `by`: one that may not run beside it, or the beginning of
// `block`.
std::optional<std::int32_t> place_to_wait(const CodeBody& body,
                                          const Instruction& by,
                                          std::int64_t block,
                                          std::int32_t from) {
  const auto limit = body.begin_of_block(block, from);
  const auto conflict = body.first_conflict(by, from, limit.value_or(body.size()));
  return conflict ? conflict : limit;
}

std::optional<std::int32_t> last_computation(const CodeBody& body, std::int32_t from) {
  for (std::int32_t i = body.size(); i-- > from;) {
    if (!is_comm(body[i])) {
      return i;
    }
  }
  return std::nullopt;
}

Instruction make_fence() {
  return {.op = make_op(FenceAttrs{}), .operands = {}, .results = {}};
}

bool is_any_of(const std::vector<TensorRef>& tensors, const std::vector<bool>& buffers) {
  return std::ranges::any_of(tensors,
                             [&](const TensorRef& tensor) { return buffers[tensor.buffer.at()]; });
}

bool passes_any_on(const Instruction& by, const UsedElsewhere& elsewhere) {
  return is_any_of(by.results, elsewhere.later) || is_any_of(by.operands, elsewhere.later);
}

// Where the work ends with a collective of what it passes on, a fence after that, which can wait.
void add_place_to_wait(CodeBody& body, const UsedElsewhere& elsewhere) {
  const auto last = last_computation(body, 0);
  for (std::int32_t i = last.value_or(-1) + 1; i < body.size(); ++i) {
    if (passes_any_on(body[i], elsewhere)) {
      Instruction fence = make_fence();
      fence.layer = last ? body[*last].layer : fence.layer;
      body.insert(body.size(), fence);
      body.find_blocks();
      return;
    }
  }
}

// The collectives of a code: those that are called ahead, then those of its work. They run in this
// order.
class CommRuns {
 public:
  explicit CommRuns(OverlappedCode& code) : code_(code) {
    for (std::int32_t i = 0; i < code.body.size(); ++i) {
      if (is_comm(code.body[i])) {
        in_work_.push_back(i);
      }
    }
  }

  std::size_t size() const { return code_.gathers.size() + in_work_.size(); }

  bool is_ahead(std::size_t i) const { return i < code_.gathers.size(); }

  std::int32_t place(std::size_t i) const { return in_work_[i - code_.gathers.size()]; }

  const Instruction& operator[](std::size_t i) const {
    return is_ahead(i) ? code_.gathers[i] : code_.body[place(i)];
  }

  // In every variant.
  std::vector<const Instruction*> forms(std::size_t i) const {
    if (is_ahead(i)) {
      return {&code_.gathers[i]};
    }
    std::vector<const Instruction*> result;
    for (const Segment& segment : code_.body.variants) {
      result.push_back(&segment.instructions[static_cast<std::size_t>(place(i))]);
    }
    return result;
  }

  // Has it signal `event`, in every variant.
  void signal(std::size_t i, EventId event) {
    if (is_ahead(i)) {
      code_.gathers[i].signals.push_back(event);
      return;
    }
    for (Segment& segment : code_.body.variants) {
      segment.instructions[static_cast<std::size_t>(place(i))].signals.push_back(event);
    }
  }

 private:
  OverlappedCode& code_;
  std::vector<std::int32_t> in_work_;
};

// That of collective `i`: within the window of memory.
std::optional<std::int32_t> place_to_wait(const CodeBody& body,
                                          const CommRuns& collectives,
                                          std::size_t i,
                                          std::int64_t layers) {
  if (collectives.is_ahead(i)) {
    return place_to_wait(body, collectives[i], layers, 0);
  }
  const std::int32_t own = collectives.place(i);
  return place_to_wait(body, collectives[i], body.block(own) + layers + 1, own);
}

// The same, or else, for what must not be left, the last place that can wait.
std::optional<std::int32_t> place_to_wait(const CodeBody& body,
                                          const CommRuns& collectives,
                                          std::size_t i,
                                          std::int64_t layers,
                                          const UsedElsewhere& elsewhere) {
  const auto place = place_to_wait(body, collectives, i, layers);
  const Instruction& by = collectives[i];
  const bool may_be_left = !is_any_of(by.results, elsewhere.any) && !passes_any_on(by, elsewhere);
  return place || may_be_left
             ? place
             : last_computation(body, collectives.is_ahead(i) ? 0 : collectives.place(i));
}

}  // namespace

std::vector<std::int32_t> OverlappedCode::pieces() const {
  std::vector<std::int32_t> begins = {0};
  for (const auto& cut : {fence_cut, gather_cut}) {
    if (cut && *cut > 0 && *cut < body.size()) {
      begins.push_back(*cut);
    }
  }
  std::ranges::sort(begins);
  begins.erase(std::ranges::unique(begins).begin(), begins.end());
  return begins;
}

Place OverlappedCode::place(std::int32_t i) const {
  const std::vector<std::int32_t> begins = pieces();
  const auto piece = std::ranges::upper_bound(begins, i) - begins.begin() - 1;
  Code code = body.code;
  code.piece = static_cast<std::int32_t>(piece);
  return {.code = code, .instruction = i - begins[static_cast<std::size_t>(piece)]};
}

std::vector<Finish> place_waits(OverlappedCode& code,
                                std::int64_t layers,
                                const UsedElsewhere& elsewhere,
                                std::int32_t& next_event) {
  CodeBody& body = code.body;
  const bool is_update = body.code.action == Action::kUpdate;
  if (!is_update) {
    add_place_to_wait(body, elsewhere);
  }
  CommRuns collectives(code);
  std::map<std::int32_t, std::size_t> waits;  // by place, the last collective to wait for
  std::optional<std::size_t> left;            // the last one at the end of the work
  std::vector<Finish> finishes;
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    const auto place = is_update ? place_to_wait(body, collectives, i, layers)
                                 : place_to_wait(body, collectives, i, layers, elsewhere);
    if (place) {
      std::size_t& last = waits.try_emplace(*place, i).first->second;
      last = std::max(last, i);
      finishes.push_back({collectives.forms(i), std::max(*place - 1, 0)});
    } else if (is_update) {
      finishes.push_back({collectives.forms(i), body.size() - 1});
    } else {
      left = i;
      finishes.push_back({collectives.forms(i), std::nullopt});
    }
  }
  // Collectives run in order, so that a wait for one is a wait for all before it.
  std::optional<std::size_t> last;
  for (const auto& [place, collective] : waits) {
    if (last && collective <= *last) {
      continue;
    }
    const EventId event = {next_event++};
    collectives.signal(collective, event);
    for (Segment& segment : body.variants) {
      segment.instructions[static_cast<std::size_t>(place)].waits.push_back(event);
    }
    last = collective;
  }
  if (left) {
    const EventId event = {next_event++};
    collectives.signal(*left, event);
    code.fence = make_fence();
    code.fence->waits.push_back(event);
  }
  return finishes;
}

}  // namespace tessera
