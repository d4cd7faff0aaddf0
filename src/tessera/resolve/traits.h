#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/config/run_config.h"
#include "tessera/cost/collective_time.h"
#include "tessera/plan/plan.h"
#include "tessera/resolve/simulated_run.h"

namespace tessera {

// A way in which other systems run the same model, as `tessera simulate --as` names it. A trait is
// there or not: it sets keys of the run, from which another program follows, or says which
// algorithms collectives have. None has a number of its own.
struct Trait {
  std::string_view name;
  std::string_view does;                      // for people
  std::string_view group;                     // of which a run has at most one; empty: none
  void (*set)(RunConfig& config) = nullptr;   // its keys
  void (*change)(Plan& plan) = nullptr;       // what of the plan no key says
  std::optional<CollectiveStyle> style = {};  // of collectives
};

std::span<const Trait> all_traits();

// The traits of that many names, each once. Errors: kInvalidConfig for an unknown name, with those
// that there are, and for two of a group.
std::vector<const Trait*> find_traits(std::span<const std::string> names);

// `config` with the keys of the traits set.
RunConfig with_traits(RunConfig config, std::span<const Trait* const> traits);

// What the traits change beside keys. They outlive it.
RunChanges changes_of(std::span<const Trait* const> traits);

}  // namespace tessera
