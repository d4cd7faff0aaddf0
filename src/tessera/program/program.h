#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/ids.h"
#include "tessera/ir/op.h"
#include "tessera/ir/state.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"

namespace tessera {

// What a buffer is for; the rows of the memory table.
enum class Category : std::uint8_t {
  kParameter,
  kSecondary,
  kGradient,
  kOptimizer,
  kCache,
  kActivation,
  kWorkspace,
  kInput,  // token ids, labels, ... of every microbatch, and the host's scalars
};

// In the order of the table, and of the arena.
inline constexpr std::array kCategories = {Category::kParameter,
                                           Category::kSecondary,
                                           Category::kGradient,
                                           Category::kOptimizer,
                                           Category::kCache,
                                           Category::kActivation,
                                           Category::kWorkspace,
                                           Category::kInput};

std::string_view name(Category category);

// Where a state lies.
Category category_of(StateRole role);

// Which memory a buffer lies in, each with an arena of its own: that of the rank's device, the
// host's beside it, or a file. Kernels work in the device's; what lies elsewhere they only fetch
// from there and store there.
enum class Space : std::uint8_t { kDevice, kHost, kFile };

inline constexpr std::array kSpaces = {Space::kDevice, Space::kHost, Space::kFile};

// All but the device's, by their names.
inline constexpr std::array kOtherSpaces = {Space::kHost, Space::kFile};

// "device", "host", "file"
std::string_view name(Space space);

// What a segment does in a microbatch or, before and after all of them (start, update), in a step.
// A backward may leave the gradients of weights to an action of their own.
enum class Action : std::uint8_t { kStart, kForward, kBackward, kWeightGradient, kUpdate };

// All of them.
inline constexpr std::array kActions = {
    Action::kStart, Action::kForward, Action::kBackward, Action::kWeightGradient, Action::kUpdate};

// Whether each microbatch comes to it.
constexpr bool is_of_microbatches(Action action) {
  return action != Action::kStart && action != Action::kUpdate;
}

std::string_view name(Action action);

// What of an action a code does: its own work; before it, gathers of the parameters that it needs
// and receives of what other ranks have made for it; after it, sends of what it has made for them,
// and the waits for collectives and for sends that it has left.
enum class CodeKind : std::uint8_t { kWork, kGather, kReceive, kSend, kFence, kSent };

// All but kWork, by their names.
inline constexpr std::array kCodeKinds = {
    CodeKind::kGather, CodeKind::kReceive, CodeKind::kSend, CodeKind::kFence, CodeKind::kSent};

// "gather", "receive", "send", "fence", "sent"
std::string_view name(CodeKind kind);

// What names a segment, and those that are variants of it (of first and later microbatches): they
// have the same buffers at the same instructions.
struct Code {
  Action action = Action::kForward;
  std::int32_t chunk = 0;  // of a pipeline rank: which stage, and slice of a microbatch's tokens
  CodeKind kind = CodeKind::kWork;
  std::int32_t piece = 0;  // where the work is cut, so that other calls come in between

  // For maps alone: codes run in the order of the calls.
  friend auto operator<=>(const Code&, const Code&) = default;
};

// "backward"; "backward.1" of chunk 1; "backward.piece1", "backward.gather", "backward.fence".
std::string to_string(const Code& code);

// An instruction of a code. It says where, not when: that is what the calls say.
struct Place {
  Code code = {};
  std::int32_t instruction = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

// Buffers that are there once for each microbatch in flight, in `slots` of them. A call has a slot
// of every pool that it touches, and uses that of each of the pool's buffers.
struct Pool {
  std::string name;
  std::int32_t slots = 1;

  friend bool operator==(const Pool&, const Pool&) = default;
};

// Offsets in the arena are multiples of this: a cache line and the widest vector of a CPU, and what
// a warp of a GPU reads at once in few lines.
inline constexpr std::int64_t kArenaAlignment = 256;

// Of a buffer that begins and ends with pages: what a disk reads and writes past the page cache.
inline constexpr std::int64_t kPageBytes = 4096;

// The first multiple of `alignment` from `offset` on.
constexpr std::int64_t align_up(std::int64_t offset, std::int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// A stretch of an arena, or one for each slot of its pool. Whenever a call does the work of
// `begin`, that of its slot begins to live, and lives until a call with that slot has come to
// `end`, both included. A persistent buffer lives always, and has neither.
struct Buffer {
  std::string name;
  Category category = Category::kActivation;
  std::int64_t bytes = 0;  // of one slot
  PoolId pool = {};        // invalid: none, which is one slot for all
  bool persistent = false;
  Place begin = {};
  Place end = {};
  std::vector<std::int64_t> offsets = {};  // by slot, in the arena; none until plan_memory()
  Space space = Space::kDevice;
  bool pages = false;  // begins and ends with pages, as what is fetched and stored past caches must
  bool leaves = false;  // to wait in another space for backward: until offload_layers()

  // Of its offsets.
  std::int64_t alignment() const { return pages ? kPageBytes : kArenaAlignment; }

  // `bytes` rounded up to the alignment.
  // Errors: kOutOfMemory where it has more than 63 bits.
  std::int64_t padded_bytes() const;

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

// A tensor inside a buffer: strides in elements, offset in bytes from the slot's begin.
struct TensorRef {
  BufferId buffer;
  std::int64_t offset = 0;
  TensorType type;
  std::vector<std::int64_t> strides;

  friend bool operator==(const TensorRef&, const TensorRef&) = default;
};

struct Instruction {
  OpRef op;
  std::vector<TensorRef> operands;
  std::vector<TensorRef> results;
  BufferId workspace = {};  // invalid: none
  StreamId stream = {0};
  std::int32_t layer = -1;            // of the model; -1 outside the layers
  std::vector<EventId> waits = {};    // events that must have happened before it starts
  std::vector<EventId> signals = {};  // events that its end makes happen
  // Does its work in the last call of its code alone; in the others it only waits and signals.
  bool only_last = false;
};

// Straight-line code.
struct Segment {
  std::string name;
  Code code = {};
  std::vector<Instruction> instructions;
};

// One run of a segment. The order of the calls is the clock of a step.
struct Call {
  SegmentId segment;
  std::int32_t microbatch = 0;
  std::vector<std::int32_t> slots = {};  // by pool; kNoSlot of those that it does not touch

  friend bool operator==(const Call&, const Call&) = default;
};

inline constexpr std::int32_t kNoSlot = -1;

// A named tensor that the host reads or writes: inputs, scalars, states and outputs.
struct Binding {
  std::string name;
  TensorRef tensor;

  friend bool operator==(const Binding&, const Binding&) = default;
};

// A state, and what it is to the run.
struct StateBinding : Binding {
  State state = {};

  friend bool operator==(const StateBinding&, const StateBinding&) = default;
};

// A rank's static step. Instructions of one stream run in order; those of different streams as
// events allow, but none before stream 0 has done all that stands before it. An event happens anew
// each time it is signalled; a wait is for the last time that it was before, in the order of the
// calls. An event of a pool is another one in each slot. The step ends when every stream has ended.
struct Program {
  std::string name;
  std::vector<std::string> streams = {"compute"};
  std::vector<Pool> pools;
  std::map<EventId, PoolId> event_pools;  // of the events that have one
  std::vector<Buffer> buffers;
  std::vector<Segment> segments;
  std::vector<Call> calls;
  std::vector<Binding> inputs;       // written by the host, per microbatch
  std::vector<Binding> scalars;      // written by the host, per step
  std::vector<StateBinding> states;  // parameters, gradients, optimizer state, caches
  std::vector<Binding> outputs;      // read by the host after the step
  std::int64_t num_microbatches = 1;
  std::int64_t arena_bytes = 0;  // of the device's
  std::int64_t host_bytes = 0;
  std::int64_t file_bytes = 0;

  const Buffer& operator[](BufferId id) const { return buffers[id.at()]; }

  const Segment& operator[](SegmentId id) const { return segments[id.at()]; }

  // Of the pool, and 1 without one.
  std::int32_t num_slots(PoolId pool) const { return pool.valid() ? pools[pool.at()].slots : 1; }

  // Which slot of the pool's buffers or events `call`, one of `calls`, uses: 0 without a pool.
  static std::int32_t slot_of(const Call& call, PoolId pool) {
    return pool.valid() ? call.slots[pool.at()] : 0;
  }

  PoolId pool_of(EventId event) const;

  // Of the space's arena.
  std::int64_t bytes_in(Space space) const;
  std::int64_t& bytes_in(Space space);

  // Where the arena of a space begins if all stand in one line, so that no two share a place.
  std::int64_t begin_of(Space space) const;

  // Of all its slots. Errors: kOutOfMemory where it has more than 63 bits.
  std::int64_t total_bytes(const Buffer& buffer) const;

  // Whether `call`, one of `calls`, is the last one of its code.
  bool is_last(const Call& call) const;

  // Whether `instruction` does its work in `call`, one of `calls`.
  bool runs(const Instruction& instruction, const Call& call) const {
    return !instruction.only_last || is_last(call);
  }

  // In how many calls of a step `instruction` of `segment` does its work.
  std::int64_t num_runs(SegmentId segment, const Instruction& instruction) const;
};

// The binding called `binding_name`. Errors: kInternal if there is none.
const Binding& find_binding(std::span<const Binding> bindings, std::string_view binding_name);
const StateBinding& find_binding(std::span<const StateBinding> states, std::string_view state_name);

// The state with `role` of this parameter; null if there is none.
const StateBinding* find_state(const Program& program, std::string_view parameter, StateRole role);

// `tensor` without data, as kernels and workspace queries see it.
View view_of(const TensorRef& tensor);

// Row-major strides of `type`.
std::vector<std::int64_t> dense_strides(const TensorType& type);

// Bytes by category in the device's arena, persistent or at its peak. Categories share
// memory where their buffers do not live at the same time, so that the parts may add up to more.
struct MemoryRow {
  Category category = Category::kParameter;
  std::int64_t peak_bytes = 0;  // alive together at most
};

std::vector<MemoryRow> memory_by_category(const Program& program);

// The text form, which parse_program() reads back.
std::string to_string(const Program& program);

// Its part of the text form: "#3+0 f32[n=16] strides(1)", in buffer 3.
std::string to_string(const TensorRef& tensor);

// Errors: kInvalidArgument with line and column.
Program parse_program(std::string_view text, std::span<const OpRef> custom_ops = {});

bool equal(const Program& a, const Program& b);

// Throws kInternal naming segment, instruction and buffer unless, over the whole call list: every
// read was written before in the same life of its buffer and is ordered after the write (same
// stream, or events), buffers that live at one time do not overlap in the arena, bytes that held
// another buffer before are written after all that used it there, nothing is used outside its life,
// or in a pool by another microbatch than began it, every life that begins ends, every tensor and
// binding fits its buffer, a result shares bytes with no other result of its instruction, and with
// an operand only as the op's aliases say, what lies in another space than the device's is only
// fetched from there or stored there, states are what verify_states() expects and lie where
// category_of() says, what gathers a secondary copy has its wire, and every output was written by
// the end.
void verify(const Program& program);

}  // namespace tessera
