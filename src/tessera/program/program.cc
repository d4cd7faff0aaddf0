#include "tessera/program/program.h"

#include <algorithm>
#include <array>
#include <map>

#include "tessera/base/checked.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/program/lives.h"

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

std::string_view name(Space space) {
  switch (space) {
    case Space::kDevice:
      return "device";
    case Space::kHost:
      return "host";
    case Space::kFile:
      return "file";
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
    case Action::kStart:
      return "start";
    case Action::kForward:
      return "forward";
    case Action::kBackward:
      return "backward";
    case Action::kWeightGradient:
      return "weight_gradient";
    case Action::kUpdate:
      return "update";
  }
  return "unknown";
}

std::string_view name(CodeKind kind) {
  switch (kind) {
    case CodeKind::kWork:
      return "work";
    case CodeKind::kGather:
      return "gather";
    case CodeKind::kReceive:
      return "receive";
    case CodeKind::kSend:
      return "send";
    case CodeKind::kFence:
      return "fence";
    case CodeKind::kSent:
      return "sent";
  }
  return "unknown";
}

std::string to_string(const Code& code) {
  std::string text(name(code.action));
  if (code.chunk > 0) {
    text += format(".{}", code.chunk);
  }
  if (code.kind != CodeKind::kWork) {
    text += format(".{}", name(code.kind));
  }
  if (code.piece > 0) {
    text += format(".piece{}", code.piece);
  }
  return text;
}

std::int64_t Buffer::padded_bytes() const {
  const auto padded = checked_sum(bytes, alignment() - 1);
  TESSERA_REQUIRE(padded.has_value(),
                  ErrorCode::kOutOfMemory,
                  "buffer \"{}\" of {} bytes has more than 2^63 with its padding",
                  name,
                  bytes);
  return *padded / alignment() * alignment();
}

std::int64_t Program::bytes_in(Space space) const {
  return space == Space::kDevice ? arena_bytes : space == Space::kHost ? host_bytes : file_bytes;
}

std::int64_t Program::begin_of(Space space) const {
  switch (space) {
    case Space::kDevice:
      return 0;
    case Space::kHost:
      return align_up(arena_bytes, kPageBytes);
    case Space::kFile:
      return align_up(begin_of(Space::kHost) + host_bytes, kPageBytes);
  }
  return 0;
}

std::int64_t& Program::bytes_in(Space space) {
  return space == Space::kDevice ? arena_bytes : space == Space::kHost ? host_bytes : file_bytes;
}

PoolId Program::pool_of(EventId event) const {
  const auto found = event_pools.find(event);
  return found == event_pools.end() ? PoolId{} : found->second;
}

std::int64_t Program::total_bytes(const Buffer& buffer) const {
  const auto total = checked_product(buffer.padded_bytes(), std::int64_t{num_slots(buffer.pool)});
  TESSERA_REQUIRE(total.has_value(),
                  ErrorCode::kOutOfMemory,
                  "buffer \"{}\": {} slots of {} bytes are more than 2^63 bytes",
                  buffer.name,
                  num_slots(buffer.pool),
                  buffer.bytes);
  return *total;
}

bool Program::is_last(const Call& call) const {
  const Code& code = (*this)[call.segment].code;
  const auto last = std::find_if(calls.rbegin(), calls.rend(), [&](const Call& other) {
    return (*this)[other.segment].code == code;
  });
  return last != calls.rend() && &*last == &call;
}

std::int64_t Program::num_runs(SegmentId segment, const Instruction& instruction) const {
  return std::ranges::count_if(
      calls, [&](const Call& call) { return call.segment == segment && runs(instruction, call); });
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
  std::map<Category, std::int64_t> alive;  // bytes
  for (const Buffer& buffer : program.buffers) {
    const bool is_there = buffer.persistent && buffer.space == Space::kDevice;
    alive[buffer.category] += is_there ? program.total_bytes(buffer) : 0;
  }
  std::map<Category, std::int64_t> peak = alive;
  for_each_life_event(program, [&](const LifeEvent& event) {
    const Buffer& buffer = program[event.of.buffer];
    if (buffer.space != Space::kDevice) {
      return;
    }
    std::int64_t& bytes = alive[buffer.category];
    bytes += event.is_end ? -buffer.padded_bytes() : buffer.padded_bytes();
    peak[buffer.category] = std::max(peak[buffer.category], bytes);
  });
  std::vector<MemoryRow> rows;
  for (const Category category : kCategories) {
    rows.push_back({.category = category, .peak_bytes = peak[category]});
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
  return a.name == b.name && a.code == b.code &&
         std::equal(a.instructions.begin(),
                    a.instructions.end(),
                    b.instructions.begin(),
                    b.instructions.end(),
                    equal_instructions);
}

}  // namespace

bool equal(const Program& a, const Program& b) {
  return a.name == b.name && a.streams == b.streams && a.pools == b.pools &&
         a.event_pools == b.event_pools && a.buffers == b.buffers && a.calls == b.calls &&
         a.inputs == b.inputs && a.scalars == b.scalars && a.states == b.states &&
         a.outputs == b.outputs && a.num_microbatches == b.num_microbatches &&
         a.arena_bytes == b.arena_bytes && a.host_bytes == b.host_bytes &&
         a.file_bytes == b.file_bytes &&
         std::equal(a.segments.begin(),
                    a.segments.end(),
                    b.segments.begin(),
                    b.segments.end(),
                    equal_segments);
}

}  // namespace tessera
