// Attention of whole rows by a library's kernels, as operation graphs.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tessera/backend/cuda/attention.h"
#include "tessera/backend/cuda/flash_graph.h"
#include "tessera/backend/cuda/graphs.h"
#include "tessera/backend/cuda/workspace.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"

namespace tessera::cuda {
namespace {

template <class T>
std::array<std::int64_t, 3> strides_of(const Heads<T>& heads) {
  return {heads.strides[0], heads.strides[1], heads.strides[2]};
}

// Of a value for each query, which lie (b, heads, t).
std::array<std::int64_t, 3> row_strides(const Shape& shape) {
  return {shape.heads * shape.queries, 1, shape.queries};
}

template <class Task>
FlashProblem problem_of(const Task& task) {
  const Shape& shape = task.shape;
  FlashProblem problem = {.causal = task.mask.causal,
                          .scale = task.scale,
                          .batch = shape.batch,
                          .tokens = shape.queries,
                          .heads = shape.heads,
                          .kv_heads = shape.kv_heads,
                          .channels = shape.channels};
  problem.strides[FlashTensor::kQ] = strides_of(task.q);
  problem.strides[FlashTensor::kK] = strides_of(task.k);
  problem.strides[FlashTensor::kV] = strides_of(task.v);
  problem.strides[FlashTensor::kO] = strides_of(task.o);
  problem.strides[FlashTensor::kLse] = row_strides(shape);
  return problem;
}

FlashProblem backward_problem_of(const Backward<BFloat16>& task) {
  FlashProblem problem = problem_of(task);
  problem.backward = true;
  problem.any_order = task.any_order;
  problem.strides[FlashTensor::kDout] = strides_of(task.dout);
  problem.strides[FlashTensor::kDq] = strides_of(task.dq);
  problem.strides[FlashTensor::kDk] = strides_of(task.dk);
  problem.strides[FlashTensor::kDv] = strides_of(task.dv);
  return problem;
}

template <class T>
void* place_of(const Heads<T>& heads, std::int64_t batch, std::int64_t head) {
  return const_cast<std::remove_const_t<T>*>(heads.at(batch, 0, head));
}

// Where the last tile of 128 keys is half full, cuDNN's backward for Hopper takes the scores of the
// keys that are not there for 0, unless a causal mask hides them: dq is NaN where exp(-lse)
// overflows. Source: NVIDIA/cudnn-frontend, pull request 628; pytorch/pytorch, issue 196678.
bool may_leave_nans(const FlashProblem& problem) {
  return !problem.causal && problem.tokens % 128 == 64;
}

// The parts in which a library does backward; batch 0: it cannot.
FlashProblem part_of(const FlashProblem& problem) {
  FlashProblem part = largest_part(problem);
  if (may_leave_nans(problem)) {
    part.batch = 0;
  }
  return part;
}

// Once: a run's rows are all as long.
void warn_of_own_kernels(const FlashProblem& problem) {
  static std::atomic_flag said;
  if (!said.test_and_set()) {
    log_warning(format(
        "attention backward by own kernels, which are slower: {}",
        may_leave_nans(problem)
            ? format("cuDNN's may give NaNs for rows of {} tokens without a causal mask",
                     problem.tokens)
            : format("rows of {} tokens need more than {} of workspace for each group of heads{}",
                     problem.tokens,
                     format_bytes(kMostFlashWorkspace),
                     problem.any_order ? "" : "; run.deterministic = false takes far less")));
  }
}

}  // namespace

FlashProblem graph_problem(const Forward<BFloat16>& task) {
  return problem_of(task);
}

FlashPointers graph_pointers(const Forward<BFloat16>& task) {
  FlashPointers pointers = {};
  pointers[FlashTensor::kQ] = place_of(task.q, 0, 0);
  pointers[FlashTensor::kK] = place_of(task.k, 0, 0);
  pointers[FlashTensor::kV] = place_of(task.v, 0, 0);
  pointers[FlashTensor::kO] = place_of(task.o, 0, 0);
  pointers[FlashTensor::kLse] = task.lse;
  return pointers;
}

std::int64_t graph_workspace_bytes(const Forward<BFloat16>& task) {
  return flash_workspace_bytes(problem_of(task)) + kWorkspaceAlignment;
}

std::int64_t graph_workspace_bytes(const Backward<BFloat16>& task) {
  const FlashProblem part = part_of(backward_problem_of(task));
  return part.batch == 0
             ? 0
             : flash_scratch(part).library + flash_workspace_bytes(part) + kWorkspaceAlignment;
}

bool run_graph(const Context& context,
               const Forward<BFloat16>& task,
               std::span<std::byte> workspace) {
  return context.graphs().run(
      context.stream(), problem_of(task), graph_pointers(task), aligned_workspace(workspace));
}

bool run_graph(const Context& context,
               const Backward<BFloat16>& task,
               std::span<std::byte> workspace) {
  const FlashProblem whole = backward_problem_of(task);
  FlashProblem part = part_of(whole);
  if (part.batch == 0) {
    warn_of_own_kernels(whole);
    return false;
  }
  part.strides[FlashTensor::kDelta] = {part.heads * part.tokens, 1, part.tokens};
  part.strides[FlashTensor::kDqSum] = {
      part.heads * part.tokens * part.channels, part.channels, part.tokens * part.channels};
  const std::span<std::byte> space = aligned_workspace(workspace);
  const FlashScratch scratch = flash_scratch(part);
  for (std::int64_t row = 0; row < whole.batch; row += part.batch) {
    for (std::int64_t group = 0; group < whole.kv_heads; group += part.kv_heads) {
      const std::int64_t head = group * task.shape.group();
      FlashPointers pointers = {};
      pointers[FlashTensor::kQ] = place_of(task.q, row, head);
      pointers[FlashTensor::kK] = place_of(task.k, row, group);
      pointers[FlashTensor::kV] = place_of(task.v, row, group);
      pointers[FlashTensor::kO] = place_of(task.o, row, head);
      pointers[FlashTensor::kLse] =
          const_cast<float*>(task.lse) + (row * whole.heads + head) * whole.tokens;
      pointers[FlashTensor::kDout] = place_of(task.dout, row, head);
      pointers[FlashTensor::kDq] = place_of(task.dq, row, head);
      pointers[FlashTensor::kDk] = place_of(task.dk, row, group);
      pointers[FlashTensor::kDv] = place_of(task.dv, row, group);
      pointers[FlashTensor::kDelta] = space.data();
      if (part.any_order) {
        pointers[FlashTensor::kDqSum] = space.data() + scratch.dq_sum;
      }
      if (!context.graphs().run(context.stream(),
                                part,
                                pointers,
                                space.subspan(static_cast<std::size_t>(scratch.library)))) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace tessera::cuda
