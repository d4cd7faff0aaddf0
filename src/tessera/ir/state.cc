#include "tessera/ir/state.h"

#include <array>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"

namespace tessera {
namespace {

constexpr std::array kRoles = {StateRole::kParameter,
                               StateRole::kSecondary,
                               StateRole::kGradient,
                               StateRole::kSum,
                               StateRole::kMoment1,
                               StateRole::kMoment2,
                               StateRole::kMaster,
                               StateRole::kCache,
                               StateRole::kBuffer};

// What a rank has of parameters: itself, or a copy alone of another pipeline rank's.
struct ParameterNames {
  std::set<std::string_view> own;
  std::set<std::string_view> copied;

  bool contains(const State& state) const {
    return own.contains(state.parameter) || state.role == StateRole::kSecondary ||
           (state.role == StateRole::kGradient && copied.contains(state.parameter));
  }
};

void verify_state(const NamedState& named, const ParameterNames& parameters) {
  const State& state = *named.state;
  if (!has_parameter(state.role)) {
    TESSERA_CHECK(state.parameter.empty(),
                  "a {} of parameter \"{}\", expected of none",
                  name(state.role),
                  state.parameter);
  } else if (is_of_model(state.role)) {
    TESSERA_CHECK(state.parameter == named.name,
                  "a {} that names \"{}\" as its parameter",
                  name(state.role),
                  state.parameter);
  } else {
    TESSERA_CHECK(!state.parameter.empty() && parameters.contains(state),
                  "a {} of \"{}\", which is no parameter",
                  name(state.role),
                  state.parameter);
  }
  TESSERA_CHECK(state.use == 0 || (state.role == StateRole::kGradient && state.use > 0),
                "a {} of use {}, expected 0, or more of a gradient",
                name(state.role),
                state.use);
  TESSERA_CHECK(state.role == StateRole::kSecondary || state.wire == Wire(),
                "a {} with the wire \"{}\" of blocks of {}, which only secondary copies have",
                name(state.role),
                to_string(state.wire.formats),
                state.wire.block);
  require_wire_block(state.wire.block);
}

}  // namespace

std::string_view name(StateRole role) {
  switch (role) {
    case StateRole::kParameter:
      return "parameter";
    case StateRole::kSecondary:
      return "secondary";
    case StateRole::kGradient:
      return "gradient";
    case StateRole::kSum:
      return "sum";
    case StateRole::kMoment1:
      return "moment1";
    case StateRole::kMoment2:
      return "moment2";
    case StateRole::kMaster:
      return "master";
    case StateRole::kCache:
      return "cache";
    case StateRole::kBuffer:
      return "buffer";
  }
  return "unknown";
}

bool has_parameter(StateRole role) {
  return role != StateRole::kSum && role != StateRole::kCache;
}

bool is_of_model(StateRole role) {
  return role == StateRole::kParameter || role == StateRole::kBuffer;
}

std::string use_text(std::int32_t use) {
  return use == 0 ? "" : format(" use {}", use);
}

std::int32_t parse_use(TextScanner& scanner) {
  return scanner.accept("use") ? scanner.index() : 0;
}

std::string owner_text(const State& state) {
  std::string text;
  if (!is_of_model(state.role) && !state.parameter.empty()) {
    text += format(" of {}", quote(state.parameter));
  }
  text += use_text(state.use);
  if (!state.wire.formats.empty()) {
    text += format(" wire {}", quote(to_string(state.wire.formats)));
  }
  if (state.wire.block != kWireBlock) {
    text += format(" block {}", state.wire.block);
  }
  return text;
}

State parse_owner(TextScanner& scanner, StateRole role, std::string_view state_name) {
  State state{.role = role};
  if (is_of_model(role)) {
    state.parameter = state_name;
  } else if (scanner.accept("of")) {
    state.parameter = scanner.quoted();
  }
  state.use = parse_use(scanner);
  if (scanner.accept("wire")) {
    state.wire.formats = parse_wire_formats(scanner.quoted());
  }
  if (scanner.accept("block")) {
    state.wire.block = scanner.integer();
  }
  return state;
}

std::optional<StateRole> accept_role(TextScanner& scanner) {
  for (const StateRole role : kRoles) {
    if (scanner.accept(name(role))) {
      return role;
    }
  }
  return std::nullopt;
}

void verify_states(const std::vector<NamedState>& states) {
  ParameterNames parameters;
  for (const NamedState& named : states) {
    if (named.state->role == StateRole::kParameter) {
      parameters.own.insert(named.name);
    } else if (named.state->role == StateRole::kSecondary) {
      parameters.copied.insert(named.state->parameter);
    }
  }
  std::set<std::tuple<std::string_view, StateRole, std::int32_t>> seen;
  for (const NamedState& named : states) {
    with_context([&] { return format("state \"{}\"", named.name); },
                 [&] {
                   verify_state(named, parameters);
                   const State& state = *named.state;
                   const bool is_copy_alone = state.role == StateRole::kSecondary &&
                                              !parameters.own.contains(state.parameter);
                   TESSERA_CHECK(!has_parameter(state.role) || is_copy_alone ||
                                     seen.emplace(state.parameter, state.role, state.use).second,
                                 "a second {} of \"{}\"{}",
                                 name(state.role),
                                 state.parameter,
                                 use_text(state.use));
                 });
  }
}

}  // namespace tessera
