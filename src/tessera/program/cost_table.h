#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/ops/op.h"
#include "tessera/program/program.h"

namespace tessera {

// What all instructions of one op do in a step.
struct CostRow {
  std::string op;
  std::int64_t count = 0;  // executions a step
  Cost cost;
};

// One row an op over the whole call list, most FLOP first, then most bytes.
std::vector<CostRow> cost_by_op(const Program& program);

}  // namespace tessera
