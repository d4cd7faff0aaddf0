#include "tessera/runtime/op_runs.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <utility>

#include "tessera/ops/op.h"
#include "tessera/program/program.h"

namespace tessera {

OpRuns::OpRuns(Backend& backend, OpRef op, const TensorTypes& operands, const Initial& content)
    : backend_(backend), op_(std::move(op)) {
  for (const TensorType& type : operands) {
    operands_.push_back(tensor(type, content));
  }
  for (const TensorType& type : infer(*op_, operands)) {
    results_.push_back(tensor(type, content));
  }
  const std::int64_t bytes = backend.workspace_bytes(*op_, operands_, results_);
  workspace_ = {allocate(bytes), static_cast<std::size_t>(bytes)};
}

double OpRuns::run(Backend& backend) {
  const auto start = std::chrono::steady_clock::now();
  backend.run(*op_, {.in = operands_, .out = results_, .workspace = workspace_}, StreamId{0});
  backend.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

View OpRuns::tensor(const TensorType& type, const Initial& content) {
  View view = view_of({.buffer = {}, .type = type, .strides = dense_strides(type)});
  view.data = allocate(type.num_bytes());
  if (type.dtype == DType::kF32 || type.dtype == DType::kBF16) {
    backend_.draw(content, view);
  }
  return view;
}

std::byte* OpRuns::allocate(std::int64_t bytes) {
  memory_.push_back(backend_.allocate(std::max<std::int64_t>(bytes, 1)));
  return memory_.back()->data();
}

}  // namespace tessera
