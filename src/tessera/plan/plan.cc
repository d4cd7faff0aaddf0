#include "tessera/plan/plan.h"

#include "tessera/plan/graphs.h"

namespace tessera {

Graph step_graph(const Plan& plan) {
  return training_graph(plan.model, plan.batch(), plan.sequence_length, plan.dtype);
}

}  // namespace tessera
