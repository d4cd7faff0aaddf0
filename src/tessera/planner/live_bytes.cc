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

// The pass that a call is of, the first microbatch's; null of others.
LiveBytes::Pass* pass_of(const Code& code, const Call& call, LiveBytes& found) {
  if (call.microbatch != 0 || code.kind != CodeKind::kWork) {
    return nullptr;
  }
  return code.action == Action::kForward    ? &found.forward
         : code.action == Action::kBackward ? &found.backward
                                            : nullptr;
}

// The most that lives where an instruction of `layer` stands.
double& most_at(LiveBytes::Pass& pass, std::int32_t layer) {
  if (layer >= 0) {
    return pass.layers[layer];
  }
  return pass.layers.empty() ? pass.before : pass.after;
}

}  // namespace

LiveBytes live_bytes(const Program& program) {
  LiveBytes found;
  LifeWalk walk(program);
  double now = 0.0;
  for (const Call& call : program.calls) {
    const Segment& segment = program[call.segment];
    LiveBytes::Pass* const pass = pass_of(segment.code, call, found);
    for (const LifeEvent& event : walk.next_call()) {
      if (program[event.of.buffer].space != Space::kDevice) {
        continue;
      }
      const auto bytes = static_cast<double>(program[event.of.buffer].padded_bytes());
      now += event.is_end ? -bytes : bytes;
      found.most = std::max(found.most, now);
      if (pass != nullptr) {
        const auto place = static_cast<std::size_t>(event.at.instruction);
        double& most = most_at(*pass, segment.instructions[place].layer);
        most = std::max(most, now);
      }
    }
    if (pass == &found.forward) {
      found.after_forward = now;
    } else if (pass == &found.backward) {
      found.after_backward = now;
    }
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
