#include "tessera/passes/ranks/tied_gradients.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/ranks/append_update.h"
#include "tessera/passes/stages/transfer_op.h"

namespace tessera {
namespace {

// How a use's gradient lies once the microbatches are done: that of a single one whole, the sum of
// several as they are added up.
TensorType type_of_sum(const TiedParameter& parameter, const UpdateOptions& options) {
  if (!options.adds_up()) {
    return parameter.gradient;
  }
  const StateAxes own = state_axes_of(parameter.gradient, options.dims, options.state);
  return slice_type(own, parameter.gradient, own.grad);
}

}  // namespace

std::set<std::string> summed_before_reduction(const Graph& graph, const UpdateOptions& options) {
  std::set<std::string> summed;
  if (options.adds_up()) {
    return summed;
  }
  for (const TiedParameter& parameter : options.tied.parameters) {
    summed.insert(parameter.name);
  }
  for (const Output& output : graph.outputs) {
    if (output.kind == OutputKind::kGradient && output.use > 0) {
      summed.insert(output.parameter);
    }
  }
  return summed;
}

void exchange_tied(GraphBuilder& builder,
                   const UpdateOptions& options,
                   GradientsOfUses& gradients) {
  const std::int64_t own = options.pipeline_rank;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> carried;  // from and to
  for (const TiedParameter& parameter : options.tied.parameters) {
    for (std::size_t i = 0; i < parameter.ranks_of_uses.size(); ++i) {
      const std::int64_t maker = parameter.ranks_of_uses[i];
      const auto use = static_cast<std::int32_t>(i);
      if (maker == parameter.owner) {
        continue;
      }
      const ChannelPlaces places = {
          .from = maker, .to = parameter.owner, .number = options.tied.gradient_channel};
      const std::int64_t index = carried[{maker, parameter.owner}]++;
      if (maker == own) {
        builder.emit(transfer_op(options.tied.axes, places, SendAttrs{.index = index}),
                     {builder.handle(gradients.at(parameter.name).at(use))});
      } else if (parameter.owner == own) {
        const ReceiveAttrs receive = {.index = index, .type = type_of_sum(parameter, options)};
        gradients[parameter.name][use] =
            builder.emit(transfer_op(options.tied.axes, places, receive), {})[0].id;
      }
    }
    if (parameter.owner != own) {
      gradients.erase(parameter.name);
    }
  }
}

}  // namespace tessera
