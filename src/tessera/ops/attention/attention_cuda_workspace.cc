#include <algorithm>
#include <array>

#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/ops/attention/attention_tasks_cuda.h"

namespace tessera {
namespace cuda {
namespace {

constexpr std::int64_t kMostFlashChannels = 128;  // of a head, by tensor cores

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
                          .scale = task.form.scale,
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

std::int64_t most_sequences(const Shape& shape) {
  const std::int64_t of_row = shape.queries / limits().tokens_of_document;
  return shape.batch * std::max<std::int64_t>(of_row, 1);
}

// Whether tensor cores take a (b, t, heads, d) tensor as one of `dtype`.
bool takes_flash(const View& heads, DType dtype) {
  return heads.dtype == dtype && heads.sizes[3] % kPack == 0 &&
         heads.sizes[3] <= kMostFlashChannels && heads.strides[0] % kPack == 0 &&
         heads.strides[1] % kPack == 0 && heads.strides[2] % kPack == 0 &&
         reinterpret_cast<std::uintptr_t>(heads.data) % 16 == 0;
}

// Whether they take what a step goes on from, if it does.
bool takes_carry(const View& carry) {
  return carry.num_dims == 0 || takes_flash(carry, DType::kF32);
}

// Whether they take all of them, with results of `dtype`.
bool takes_flash(const AttentionOperands& of, DType dtype) {
  return takes_flash(of.q, DType::kBF16) && takes_flash(of.k, DType::kBF16) &&
         takes_flash(of.v, DType::kBF16) && takes_flash(of.o, dtype);
}

bool takes_flash(const AttentionBackwardOperands& of, DType dtype) {
  return takes_flash(of.dout, DType::kBF16) && takes_flash(of.q, DType::kBF16) &&
         takes_flash(of.k, DType::kBF16) && takes_flash(of.v, DType::kBF16) &&
         takes_flash(of.o, DType::kBF16) && takes_flash(of.dq, dtype) &&
         takes_flash(of.dk, dtype) && takes_flash(of.dv, dtype);
}

// Of backward by own kernels: with tensor cores, and without.
std::int64_t flash_backward_bytes(const Shape& shape) {
  return delta_bytes(shape) + ranges_workspace_bytes(shape);
}

std::int64_t plain_backward_bytes(const AttentionBackwardOperands& of) {
  return of.lse.num_elements() * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

bool takes_flash(const AttentionOperands& of) {
  return takes_flash(of, DType::kBF16);
}

bool takes_flash(const AttentionPartOperands& part) {
  return takes_flash(part.of, part.of.o.dtype) && takes_carry(part.carry_o);
}

bool takes_flash(const AttentionBackwardOperands& of) {
  return takes_flash(of, DType::kBF16);
}

bool takes_flash(const AttentionPartBackwardOperands& part) {
  return takes_flash(part.of, DType::kF32) && takes_carry(part.carry);
}

Form form_of(const FormFacts& facts, const View& q, const View& k) {
  // The graphs of the library have no window and no softcap.
  if (q.sizes[1] != k.sizes[1] || q.sizes[1] == 1 || facts.window > 0 || facts.has_cap) {
    return Form::kAny;
  }
  return facts.whole_rows ? Form::kWholeRows : facts.causal ? Form::kDocuments : Form::kAny;
}

std::int64_t delta_bytes(const Shape& shape) {
  Parts parts(nullptr);
  parts.take<float>(shape.batch * shape.heads * shape.queries);
  return parts.size();
}

std::int64_t ranges_workspace_bytes(const Shape& shape) {
  return (flash::tiles_of(shape.batch, 1, shape.queries) +
          flash::tiles_of(shape.batch, 1, shape.keys)) *
         std::int64_t{sizeof(flash::Range)};
}

bool may_leave_nans(const FlashProblem& problem) {
  return !problem.causal && problem.tokens % 128 == 64;
}

FlashProblem library_part(const FlashProblem& problem) {
  FlashProblem part = largest_part(problem);
  if (may_leave_nans(problem)) {
    part.batch = 0;
  }
  return part;
}

FlashProblem graph_problem(const Forward<BFloat16>& task) {
  return problem_of(task);
}

FlashProblem graph_problem(const Backward<BFloat16>& task) {
  FlashProblem problem = problem_of(task);
  problem.backward = true;
  problem.any_order = task.any_order;
  problem.strides[FlashTensor::kDout] = strides_of(task.dout);
  problem.strides[FlashTensor::kDq] = strides_of(task.dq);
  problem.strides[FlashTensor::kDk] = strides_of(task.dk);
  problem.strides[FlashTensor::kDv] = strides_of(task.dv);
  return problem;
}

std::int64_t graph_workspace_bytes(const Forward<BFloat16>& task) {
  return flash_workspace_bytes(graph_problem(task)) + kWorkspaceAlignment;
}

std::int64_t graph_workspace_bytes(const Backward<BFloat16>& task) {
  const FlashProblem part = library_part(graph_problem(task));
  return part.batch == 0
             ? 0
             : flash_scratch(part).library + flash_workspace_bytes(part) + kWorkspaceAlignment;
}

SequencesScratch::SequencesScratch(std::byte* data, const Shape& shape) {
  Parts parts(data);
  sequences.most = most_sequences(shape);
  for (std::int64_t*& starts : sequences.starts) {
    starts = parts.take<std::int64_t>(sequences.most + 1);
  }
  sequences.lengths = parts.take<std::int32_t>(sequences.most);
  sequences.first = parts.take<std::int32_t>(sequences.most + 1);
  sequences.found = parts.take<std::int32_t>(1);
  lse = parts.take<float>(shape.batch * shape.queries * shape.heads);
  library = parts.size();
}

FlashProblem sequences_problem(const Forward<BFloat16>& task) {
  FlashProblem problem = graph_problem(task);
  problem.sequences = most_sequences(task.shape);
  problem.strides[FlashTensor::kLse] = {task.shape.queries * task.shape.heads, task.shape.heads, 1};
  return problem;
}

std::int64_t sequences_workspace_bytes(const Forward<BFloat16>& task) {
  return SequencesScratch(nullptr, task.shape).library +
         flash_workspace_bytes(sequences_problem(task)) + kWorkspaceAlignment;
}

}  // namespace cuda

std::int64_t cuda_workspace_bytes(const AttentionAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const AttentionOperands of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  if (!cuda::takes_flash(of)) {
    return 0;
  }
  const auto task = cuda::forward_task<BFloat16>(attrs, of);
  const std::int64_t own = cuda::ranges_workspace_bytes(task.shape);
  switch (cuda::form_of(attrs, of.q, of.k)) {
    case cuda::Form::kWholeRows:
      return std::max(own, cuda::graph_workspace_bytes(task));
    case cuda::Form::kDocuments:
      return own + cuda::sequences_workspace_bytes(task);
    case cuda::Form::kAny:
      break;
  }
  return own;
}

std::int64_t cuda_workspace_bytes(const AttentionBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  if (!cuda::takes_flash(of)) {
    return cuda::plain_backward_bytes(of);
  }
  const auto task = cuda::backward_task<BFloat16>(attrs, of, nullptr);
  const std::int64_t own = cuda::flash_backward_bytes(task.shape);
  return cuda::form_of(attrs, of.q, of.k) == cuda::Form::kWholeRows
             ? std::max(own, cuda::graph_workspace_bytes(task))
             : own;
}

std::int64_t cuda_workspace_bytes(const AttentionPartAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const auto part = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  return cuda::takes_flash(part)
             ? cuda::ranges_workspace_bytes(cuda::shape_of(part.of.q, part.of.k))
             : 0;
}

std::int64_t cuda_workspace_bytes(const AttentionPartBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const auto part = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  return cuda::takes_flash(part) ? cuda::flash_backward_bytes(cuda::shape_of(part.of.q, part.of.k))
                                 : cuda::plain_backward_bytes(part.of);
}

bool is_left_to_cudnn(const AttentionAttrs& attrs,
                      std::span<const View> operands,
                      std::span<const View> results) {
  const AttentionOperands of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  return cuda::takes_flash(of) && cuda::form_of(attrs, of.q, of.k) != cuda::Form::kAny;
}

bool is_left_to_cudnn(const AttentionBackwardAttrs& attrs,
                      std::span<const View> operands,
                      std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  return cuda::takes_flash(of) && cuda::form_of(attrs, of.q, of.k) == cuda::Form::kWholeRows &&
         cuda::graph_workspace_bytes(cuda::backward_task<BFloat16>(attrs, of, nullptr)) > 0;
}

}  // namespace tessera
