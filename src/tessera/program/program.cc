#include "tessera/program/program.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "tessera/base/checked.h"
#include "tessera/base/error.h"

namespace tessera {

std::string_view name(Category category) {
  switch (category) {
    case Category::kParameter:
      return "parameter";
    case Category::kSecondary:
      return "secondary";
    case Category::kGradient:
      return "gradient";
    case Category::kOptimizer:
      return "optimizer";
    case Category::kCache:
      return "cache";
    case Category::kActivation:
      return "activation";
    case Category::kWorkspace:
      return "workspace";
    case Category::kInput:
      return "input";
  }
  return "unknown";
}

Category category_of(StateRole role) {
  switch (role) {
    case StateRole::kParameter:
      return Category::kParameter;
    case StateRole::kSecondary:
      return Category::kSecondary;
    case StateRole::kGradient:
    case StateRole::kSum:
      return Category::kGradient;
    case StateRole::kMoment1:
    case StateRole::kMoment2:
    case StateRole::kMaster:
      return Category::kOptimizer;
    case StateRole::kCache:
      return Category::kCache;
    case StateRole::kBuffer:
      return Category::kParameter;
  }
  return Category::kOptimizer;
}

std::string_view name(Action action) {
  switch (action) {
    case Action::kForward:
      return "forward";
    case Action::kBackward:
      return "backward";
    case Action::kUpdate:
      return "update";
  }
  return "unknown";
}

std::int64_t Buffer::instance_stride() const {
  const auto padded = checked_sum(bytes, kArenaAlignment - 1);
  TESSERA_REQUIRE(padded.has_value(),
                  ErrorCode::kOutOfMemory,
                  "buffer \"{}\" of {} bytes has more than 2^63 with its padding",
                  name,
                  bytes);
  return *padded / kArenaAlignment * kArenaAlignment;
}

std::int64_t Buffer::total_bytes() const {
  const auto total = checked_product(instance_stride(), num_instances);
  TESSERA_REQUIRE(total.has_value(),
                  ErrorCode::kOutOfMemory,
                  "buffer \"{}\": {} instances of {} bytes are more than 2^63 bytes",
                  name,
                  num_instances,
                  bytes);
  return *total;
}

std::vector<LifeSpan> life_spans(const Buffer& buffer) {
  if (!buffer.lives_into_next_microbatch()) {
    return {{.begin = buffer.begin, .end = buffer.end}};
  }
  constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();
  return {{.begin = {}, .end = buffer.end},
          {.begin = buffer.begin, .end = {.action = kLast, .instruction = 0}}};
}

namespace {

template <class AnyBinding>
const AnyBinding& find_in(std::span<const AnyBinding> bindings, std::string_view binding_name) {
  const auto found = std::ranges::find(bindings, binding_name, &AnyBinding::name);
  TESSERA_CHECK(found != bindings.end(), "the program has no tensor \"{}\"", binding_name);
  return *found;
}

}  // namespace

const Binding& find_binding(std::span<const Binding> bindings, std::string_view binding_name) {
  return find_in(bindings, binding_name);
}

const StateBinding& find_binding(std::span<const StateBinding> states,
                                 std::string_view state_name) {
  return find_in(states, state_name);
}

const StateBinding* find_state(const Program& program, std::string_view parameter, StateRole role) {
  const auto found = std::ranges::find_if(program.states, [&](const StateBinding& binding) {
    return binding.state.role == role && binding.state.parameter == parameter;
  });
  return found == program.states.end() ? nullptr : &*found;
}

View view_of(const TensorRef& tensor) {
  TESSERA_CHECK(tensor.type.num_dims() <= kMaxDims, "{} has too many dims", to_string(tensor.type));
  View view{.dtype = tensor.type.dtype,
            .num_dims = static_cast<std::int32_t>(tensor.type.num_dims())};
  for (std::size_t i = 0; i < tensor.type.num_dims(); ++i) {
    view.sizes[i] = tensor.type.dims[i].bound;
    view.strides[i] = tensor.strides[i];
  }
  return view;
}

std::vector<std::int64_t> dense_strides(const TensorType& type) {
  std::vector<std::int64_t> strides(type.num_dims());
  std::int64_t stride = 1;
  for (std::size_t i = type.num_dims(); i-- > 0;) {
    strides[i] = stride;
    stride *= type.dims[i].bound;
  }
  return strides;
}

std::vector<MemoryRow> memory_by_category(const Program& program) {
  constexpr std::array kOrder = {Category::kParameter,
                                 Category::kSecondary,
                                 Category::kGradient,
                                 Category::kOptimizer,
                                 Category::kCache,
                                 Category::kActivation,
                                 Category::kWorkspace,
                                 Category::kInput};
  std::vector<MemoryRow> rows;
  for (const Category category : kOrder) {
    MemoryRow row{.category = category};
    std::int64_t always = 0;
    std::map<Place, std::int64_t> changes;  // bytes that begin (or, after its end, stop) living
    for (const Buffer& buffer : program.buffers) {
      if (buffer.category != category) {
        continue;
      }
      if (buffer.persistent) {
        always += buffer.total_bytes();
        continue;
      }
      for (const LifeSpan& span : life_spans(buffer)) {
        changes[span.begin] += buffer.total_bytes();
        Place after = span.end;
        ++after.instruction;
        changes[after] -= buffer.total_bytes();
      }
    }
    std::int64_t alive = always;
    row.peak_bytes = always;
    for (const auto& [place, change] : changes) {
      alive += change;
      row.peak_bytes = std::max(row.peak_bytes, alive);
    }
    rows.push_back(row);
  }
  return rows;
}

namespace {

bool equal_instructions(const Instruction& a, const Instruction& b) {
  return equal(*a.op, *b.op) && a.operands == b.operands && a.results == b.results &&
         a.workspace == b.workspace && a.stream == b.stream && a.layer == b.layer &&
         a.waits == b.waits && a.signals == b.signals && a.only_last == b.only_last;
}

bool equal_segments(const Segment& a, const Segment& b) {
  return a.name == b.name && a.action == b.action && a.chunk == b.chunk &&
         std::equal(a.instructions.begin(),
                    a.instructions.end(),
                    b.instructions.begin(),
                    b.instructions.end(),
                    equal_instructions);
}

}  // namespace

std::int64_t Program::num_runs(SegmentId segment, const Instruction& instruction) const {
  return std::ranges::count_if(
      calls, [&](const Call& call) { return call.segment == segment && runs(instruction, call); });
}

bool equal(const Program& a, const Program& b) {
  return a.name == b.name && a.streams == b.streams && a.buffers == b.buffers &&
         a.calls == b.calls && a.inputs == b.inputs && a.scalars == b.scalars &&
         a.states == b.states && a.outputs == b.outputs &&
         a.num_microbatches == b.num_microbatches && a.arena_bytes == b.arena_bytes &&
         std::equal(a.segments.begin(),
                    a.segments.end(),
                    b.segments.begin(),
                    b.segments.end(),
                    equal_segments);
}

}  // namespace tessera
