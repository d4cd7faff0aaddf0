#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/wire_format.h"

namespace tessera {

class TextScanner;

// What a state is to the run that keeps it.
enum class StateRole : std::uint8_t {
  kParameter,  // weights, trained or frozen
  kSecondary,  // a copy of a parameter over fewer ranks, or of another pipeline rank's
  kGradient,   // the sum of a parameter's gradients, or of one use's, over a step's microbatches
  kSum,        // the sum over the microbatches of an output that is no gradient
  kMoment1,    // AdamW's first moment of a parameter's gradient
  kMoment2,    // its second moment
  kMaster,     // f32 weights, of which the parameter is a rounded or gathered copy
  kCache,      // keys or values of earlier tokens, in generation
  kBuffer,     // what a model keeps beside its weights: saved, and trained by no gradient
};

// "parameter", "secondary", "gradient", "sum", "moment1", "moment2", "master", "cache", "buffer".
std::string_view name(StateRole role);

// Whether a state of this role is a parameter or belongs to one. A sum and a cache belong to none.
// A buffer counts as a parameter here: both are tensors of the model, and their own.
bool has_parameter(StateRole role);

// Whether a state of this role is a tensor of the model itself: it has its own name, and says how
// it starts.
bool is_of_model(StateRole role);

// Set once by the pass that makes the state; names of states are for people.
struct State {
  std::string parameter = {};  // its name; empty where the role has none
  StateRole role = StateRole::kParameter;
  // Of a gradient: which of the parameter's uses it is of, from 0, where each has its own.
  std::int32_t use = 0;
  // Of a secondary copy: how the update sends its parts to the other ranks, which rounds them.
  Wire wire = {};

  friend bool operator==(const State&, const State&) = default;
};

// What follows a gradient's parameter in text: ` use 1`; nothing of the first use.
std::string use_text(std::int32_t use);

// The inverse.
std::int32_t parse_use(TextScanner& scanner);

// What follows a state's name and role in text: ` of "w" use 1`, ` of "w" wire "int8" block 64`,
// without the parts that have their defaults. A parameter and a buffer are their own.
std::string owner_text(const State& state);

// The inverse: reads what follows the name and role of a state.
// Errors: kInvalidArgument with the place, and as parse_wire_formats().
State parse_owner(TextScanner& scanner, StateRole role, std::string_view state_name);

// Consumes the role that is next, if there is one.
std::optional<StateRole> accept_role(TextScanner& scanner);

struct NamedState {
  std::string_view name;
  const State* state;
};

// Throws kInternal naming the state unless: a parameter and a buffer are their own; a state of
// another role that has a parameter names one that is among `states`, a secondary copy or a
// gradient of one that is copied here one that need not be; the other roles name none; only a
// gradient is of another use than the first; only a secondary copy has a wire; no two states have
// one role of one parameter and use, but for copies of what is not here itself. Errors: as
// require_wire_block(), too.
void verify_states(const std::vector<NamedState>& states);

}  // namespace tessera
