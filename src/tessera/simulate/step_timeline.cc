#include "tessera/simulate/step_timeline.h"

#include <algorithm>

namespace tessera {

Ticks ClassTimeline::last() const {
  return end.empty() ? 0 : std::ranges::max(end);
}

const ClassTimeline& StepTimeline::critical() const {
  return *std::ranges::max_element(classes, {}, &ClassTimeline::last);
}

}  // namespace tessera
