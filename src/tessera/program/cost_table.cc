#include "tessera/program/cost_table.h"

#include <algorithm>
#include <map>

#include "tessera/program/issue_order.h"
#include "tessera/program/operand_types.h"

namespace tessera {
namespace {

void add(CostRow& row, const Cost& cost) {
  ++row.count;
  row.cost.flop += cost.flop;
  row.cost.bytes_read += cost.bytes_read;
  row.cost.bytes_written += cost.bytes_written;
}

double bytes(const CostRow& row) {
  return row.cost.bytes_read + row.cost.bytes_written;
}

}  // namespace

std::vector<CostRow> cost_by_op(const Program& program) {
  std::map<std::string, CostRow> rows;
  for (const IssueStep& step : issue_order(program).steps) {
    const Instruction& instruction = instruction_of(program, step);
    const bool computes = !instruction.results.empty();  // a fence does not
    if (step.works && computes) {
      CostRow& row = rows[info(*instruction.op).name];
      row.op = info(*instruction.op).name;
      add(row, cost(*instruction.op, operand_types(instruction)));
    }
  }
  std::vector<CostRow> table;
  for (auto& [name, row] : rows) {
    table.push_back(std::move(row));
  }
  std::stable_sort(table.begin(), table.end(), [](const CostRow& a, const CostRow& b) {
    return a.cost.flop != b.cost.flop ? a.cost.flop > b.cost.flop : bytes(a) > bytes(b);
  });
  return table;
}

}  // namespace tessera
