#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/ids.h"
#include "tessera/ir/op.h"
#include "tessera/ir/state.h"
#include "tessera/ir/tensor_type.h"

namespace tessera {

// Where a value comes from, and what a step does with it. The kinds from parameter to buffer are
// states; several roles (ir/state.h) are of one kind.
enum class ValueKind : std::uint8_t {
  kInput,      // differs from microbatch to microbatch: tokens, labels, ...
  kScalar,     // set by the host once a step: learning rate, 1/valid tokens, ...
  kParameter,  // trained weights
  kSecondary,  // a copy of a parameter over fewer ranks, or of another pipeline rank's
  kGradient,   // accumulates a gradient or another output over the microbatches of a step
  kOptimizer,  // optimizer state: moments, f32 master
  kCache,      // keys and values of earlier tokens, in generation
  kBuffer,     // what a model keeps beside its weights, and no gradient trains
  kResult,     // of a node
};

// When a node runs: once a microbatch (forward, backward, weight gradient) or once a step, before
// its microbatches (start) or after them (update).
enum class Phase : std::uint8_t { kStart, kForward, kBackward, kWeightGradient, kUpdate };

std::string_view name(ValueKind kind);
std::string_view name(Phase phase);

// The kind of a state.
ValueKind kind_of(StateRole role);

// Whether values of this kind are states.
bool is_state(ValueKind kind);

// How a parameter or a buffer starts, as a pure function of seed, name and index.
struct Initializer {
  double mean = 0.0;
  double std = 0.0;  // normal with this standard deviation; 0: constant `mean`
  double cut = 0.0;  // cut at ±cut standard deviations; 0: not cut

  friend bool operator==(const Initializer&, const Initializer&) = default;
};

struct ValueInfo {
  TensorType type;
  ValueKind kind = ValueKind::kResult;
  std::string name = {};          // unique and not empty unless kResult
  State state = {};               // of states
  Initializer init = {};          // kParameter and kBuffer only
  bool frozen = false;            // kParameter only: keeps its content, has no gradient
  bool leaves = false;            // kResult of forward only: waits in another space for backward
  NodeId producer = {};           // kResult only
  std::int32_t result_index = 0;  // kResult only
};

struct Node {
  OpRef op;
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  Phase phase = Phase::kForward;
  std::int32_t layer = -1;  // the model's layer, the unit of recompute; -1 outside the layers
  std::int32_t chunk = 0;   // of a pipeline rank: which stage, and slice of the tokens, it is of
};

// What an output is to the passes.
enum class OutputKind : std::uint8_t {
  kResult,     // the host reads it as it is
  kLoss,       // what training makes small: a sum over the labels of a microbatch
  kStatistic,  // another such sum, of which nothing is differentiated
  kGradient,   // of a parameter or of one of its uses, likewise a sum
};

// "result", "loss", "statistic", "gradient".
std::string_view name(OutputKind kind);

// Whether outputs of this kind add up: over the data ranks and, in training, over microbatches.
bool is_sum(OutputKind kind);

// A value that outlives the step's microbatch. With `updates`, it is the new content of that state
// (parameter, gradient, optimizer, cache, buffer) and a result; otherwise the host or a pass reads
// it.
struct Output {
  std::string name;
  ValueId value;
  OutputKind kind = OutputKind::kResult;
  std::string parameter = {};  // of a gradient: whose
  std::int32_t use = 0;        // of a gradient: of which of its uses, where each has its own
  std::optional<ValueId> updates = std::nullopt;

  friend bool operator==(const Output&, const Output&) = default;
};

// The sequential model, one microbatch of all data ranks, with global shapes: nodes in an order in
// which they can run. A value is defined once (SSA).
struct Graph {
  std::string name;
  std::vector<ValueInfo> values;
  std::vector<Node> nodes;
  std::vector<Output> outputs;

  const ValueInfo& operator[](ValueId id) const { return values[id.at()]; }

  ValueInfo& operator[](ValueId id) { return values[id.at()]; }

  // Adds a value that no node produces. Errors: kOutOfMemory where its bytes have more than 63
  // bits.
  ValueId add_source(ValueInfo source);

  ValueId add_input(std::string input_name, TensorType type);

  ValueId add_parameter(std::string parameter_name, TensorType type, Initializer init = {});

  ValueId add_buffer(std::string buffer_name, TensorType type, Initializer init = {});

  ValueId add_state(State state, std::string state_name, TensorType type);

  // The state with `role` of this parameter, or an invalid id.
  ValueId find_state(std::string_view parameter, StateRole role) const;

  // Types of `ids`, in order.
  TensorTypes types(std::span<const ValueId> ids) const;

  // All sources of `kind`, in order of definition.
  std::vector<ValueId> sources(ValueKind kind) const;

  // The parameters that are not frozen, in order of definition.
  std::vector<ValueId> trained_parameters() const;
};

// The nodes that read each value, in node order, indexed by value; outputs are not counted.
std::vector<std::vector<NodeId>> users(const Graph& graph);

// The text form, which parse_graph() reads back. One line a value or node.
std::string to_string(const Graph& graph);

// Errors: kInvalidArgument with line and column. Result types are written in the text and must
// equal what the op infers. `custom_ops` are prototypes of ops from outside the list that the text
// names.
Graph parse_graph(std::string_view text, std::span<const OpRef> custom_ops = {});

// Same values, nodes and outputs, with equal ids.
bool equal(const Graph& a, const Graph& b);

// Throws kInternal naming node and value unless: operands are defined before use and exist, arity
// and result types are what the op says, ids link up, names are unique, states are what
// verify_states() expects, outputs exist, updated state has the type of its new content, there is
// at most one loss, and a gradient, at most one per parameter and use, names a parameter that is
// trained.
// Throws kOutOfMemory for a tensor whose bytes have more than 63 bits.
void verify(const Graph& graph);

}  // namespace tessera
