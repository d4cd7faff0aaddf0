#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "tessera/ir/builder.h"
#include "tessera/passes/stages/tied_parameters.h"

namespace tessera {

struct UpdateOptions;

// By parameter and use.
using GradientsOfUses = std::map<std::string, std::map<std::int32_t, ValueId>>;

// The parameters of which one microbatch's gradients of several uses are added before they are
// reduced, as if there were no pipeline. With several microbatches there are none.
std::set<std::string> summed_before_reduction(const Graph& graph, const UpdateOptions& options);

// In the update: sends the gradients of uses of other ranks' parameters, which leave `gradients`,
// and adds to them those of this rank's parameters that others have made.
void exchange_tied(GraphBuilder& builder, const UpdateOptions& options, GradientsOfUses& gradients);

}  // namespace tessera
