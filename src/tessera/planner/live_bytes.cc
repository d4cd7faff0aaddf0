#include "tessera/planner/live_bytes.h"

#include <algorithm>
#include <limits>

#include "tessera/program/lives.h"

namespace tessera {
namespace {

// What lives in a pass beside what layers keep: those before layer i `before` each, those after it
// `after` each. The least of all layers, since what stands at the ends may add to theirs.
double beside_layers(const LiveBytes::Pass& pass, double before, double own, double after) {
  double least = std::numeric_limits<double>::infinity();
  const auto layers = static_cast<double>(pass.layers.size());
  for (const auto& [layer, bytes] : pass.layers) {
    const auto i = static_cast<double>(layer);
    least = std::min(least, bytes - i * before - own - (layers - 1.0 - i) * after);
  }
  return pass.layers.empty() ? 0.0 : std::max(0.0, least);
}

}  // namespace

LiveBytes live_bytes(const Program& program) {
  LiveBytes found;
  LifeWalk walk(program);
  double now = 0.0;
  for (const Call& call : program.calls) {
    const Code& code = program[call.segment].code;
    const bool is_first = call.microbatch == 0 && code.kind == CodeKind::kWork;
    const bool is_forward = is_first && code.action == Action::kForward;
    const bool is_backward = is_first && code.action == Action::kBackward;
    LiveBytes::Pass& pass = is_forward ? found.forward : found.backward;
    for (const LifeEvent& event : walk.next_call()) {
      const auto bytes = static_cast<double>(program[event.of.buffer].padded_bytes());
      now += event.is_end ? -bytes : bytes;
      found.most = std::max(found.most, now);
      if (!is_forward && !is_backward) {
        continue;
      }
      const std::int32_t layer =
          program[call.segment].instructions[static_cast<std::size_t>(event.at.instruction)].layer;
      double& most = layer >= 0            ? pass.layers[layer]
                     : pass.layers.empty() ? pass.before
                                           : pass.after;
      most = std::max(most, now);
    }
    found.after_forward = is_forward ? now : found.after_forward;
    found.after_backward = is_backward ? now : found.after_backward;
  }
  return found;
}

LayerBytes layer_bytes(const LiveBytes& few, const LiveBytes& more) {
  const auto size = [](const LiveBytes& of) {
    return static_cast<double>(of.forward.layers.size());
  };
  const double added = size(more) - size(few);
  const auto each = [&](double LiveBytes::* bytes) {
    return added > 0.0 ? std::max(0.0, (more.*bytes - few.*bytes) / added) : 0.0;
  };
  LayerBytes layer = {.kept = each(&LiveBytes::after_forward),
                      .left = each(&LiveBytes::after_backward)};
  const double all = size(more) * layer.kept;
  layer.in_forward = beside_layers(more.forward, layer.kept, 0.0, 0.0);
  layer.in_backward = beside_layers(more.backward, layer.kept, layer.kept, layer.left);
  layer.head_forward = std::max(0.0, more.forward.after - all);
  layer.head_backward = std::max(0.0, more.backward.before - all);
  return layer;
}

}  // namespace tessera
