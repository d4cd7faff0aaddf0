// Attention of whole rows by a library's kernels, as operation graphs.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tessera/backend/cuda/cudnn/flash_graph.h"
#include "tessera/backend/cuda/cudnn/graphs.h"
#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/ops/attention/attention_tasks_cuda.h"

namespace tessera::cuda {
namespace {

template <class T>
void* place_of(const Heads<T>& heads, std::int64_t batch, std::int64_t head) {
  return const_cast<std::remove_const_t<T>*>(heads.at(batch, 0, head));
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
                     format_bytes(limits().flash_workspace),
                     problem.any_order ? "" : "; run.deterministic = false takes far less")));
  }
}

}  // namespace

FlashPointers graph_pointers(const Forward<BFloat16>& task) {
  FlashPointers pointers = {};
  pointers[FlashTensor::kQ] = place_of(task.q, 0, 0);
  pointers[FlashTensor::kK] = place_of(task.k, 0, 0);
  pointers[FlashTensor::kV] = place_of(task.v, 0, 0);
  pointers[FlashTensor::kO] = place_of(task.o, 0, 0);
  pointers[FlashTensor::kLse] = task.lse;
  return pointers;
}

bool run_graph(const Context& context,
               const Forward<BFloat16>& task,
               std::span<std::byte> workspace) {
  return context.graphs().run(
      context.stream(), graph_problem(task), graph_pointers(task), aligned_workspace(workspace));
}

bool run_graph(const Context& context,
               const Backward<BFloat16>& task,
               std::span<std::byte> workspace) {
  const FlashProblem whole = graph_problem(task);
  FlashProblem part = library_part(whole);
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
