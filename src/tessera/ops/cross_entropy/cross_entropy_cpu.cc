#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/base/error.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/ops/cross_entropy/cross_entropy_problem.h"
#include "tessera/ops/cross_entropy/softmax_cpu.h"

namespace tessera {
namespace {

// With the gradient of a chunk of logits in the inputs' dtype, where that is not f32, and what a
// vocabulary that is cut over axes needs behind it: the sums by row and what moves of them.
struct Problem : CrossEntropyProblem {
  bool is_cut;

  Problem(const CrossEntropyAttrs& attrs, std::span<const View> operands)
      : CrossEntropyProblem(attrs, operands), is_cut(!attrs.axes.empty()) {}

  std::int64_t gradient_bytes() const {
    return dtype == DType::kF32 ? 0 : aligned(chunk * vocab * 2);
  }

  std::int64_t sums_bytes() const {
    return is_cut ? aligned(chunk * static_cast<std::int64_t>(sizeof(cpu::RowSum))) : 0;
  }

  std::int64_t moved_bytes() const { return is_cut ? aligned(chunk * 4) : 0; }
};

// Makes the sums of each row's shards those of the row. `moved` holds a float a row.
void join(std::span<cpu::RowSum> sums,
          std::span<const std::int32_t> labels,
          Levels levels,
          float* moved) {
  const Elements elements = {.dtype = DType::kF32,
                             .data = reinterpret_cast<std::byte*>(moved),
                             .count = static_cast<std::int64_t>(sums.size())};
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (std::size_t row = 0; row < sums.size(); ++row) {
    sums[row] = labels[row] < 0 ? cpu::RowSum{} : sums[row];
    // A shard whose exponentials are all zero has no say in the shift.
    moved[row] = sums[row].total == 0.0 ? kLowest : sums[row].shift;
  }
  all_reduce(Fold::kMax, levels, elements, elements);
  for (std::size_t row = 0; row < sums.size(); ++row) {
    cpu::RowSum& sum = sums[row];
    if (sum.total != 0.0) {
      sum.total *= std::exp(static_cast<double>(sum.shift) - static_cast<double>(moved[row]));
    }
    sum.shift = moved[row];
    moved[row] = static_cast<float>(sum.total);
  }
  all_reduce(Fold::kSum, levels, elements, elements);
  for (std::size_t row = 0; row < sums.size(); ++row) {
    sums[row].total = moved[row];
  }
}

void check_labels(std::span<const std::int32_t> labels, std::int64_t vocab) {
  const auto bad = std::find_if(
      labels.begin(), labels.end(), [&](std::int32_t label) { return label >= vocab; });
  TESSERA_REQUIRE(bad == labels.end(),
                  ErrorCode::kInvalidData,
                  "label {} at row {}, expected less than the vocabulary of {}",
                  *bad,
                  bad - labels.begin(),
                  vocab);
}

// What the gradients of a chunk of logits make.
struct ChunkGradients {
  const void* dlogits;
  const void* head;
  const std::byte* x;
  std::byte* dx;
  void* dhead;  // null: not wanted
  bool accumulate;
};

// Of `m` rows.
void run_gradients(cpu::Context& context,
                   const Problem& problem,
                   std::int64_t m,
                   const ChunkGradients& chunk,
                   std::span<std::byte> workspace) {
  cpu::run_gemm(context,
                problem.hidden_gradient(m, problem.vocab),
                chunk.dlogits,
                chunk.head,
                chunk.dx,
                workspace);
  if (chunk.dhead != nullptr) {
    cpu::run_gemm(context,
                  problem.head_gradient(m, problem.vocab, chunk.accumulate),
                  chunk.dlogits,
                  chunk.x,
                  chunk.dhead,
                  workspace);
  }
}

}  // namespace

std::int64_t workspace_bytes(const CrossEntropyAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View>) {
  const Problem problem(attrs, operands);
  std::int64_t gemm_bytes = 0;
  const auto consider = [&](const Gemm& gemm) {
    gemm_bytes = std::max(gemm_bytes, cpu::gemm_workspace_bytes(context, gemm));
  };
  for (const std::int64_t m : {problem.chunk, problem.rows % problem.chunk}) {
    if (m == 0) {
      continue;
    }
    consider(problem.logits(m));
    if (attrs.gradients) {
      consider(problem.hidden_gradient(m, problem.vocab));
    }
    if (attrs.makes_head_gradient()) {
      consider(problem.head_gradient(m, problem.vocab, false));
      consider(problem.head_gradient(m, problem.vocab, true));
    }
  }
  return problem.logits_bytes() + problem.gradient_bytes() + Problem::loss_bytes(problem.chunk) +
         problem.sums_bytes() + problem.moved_bytes() + Problem::aligned(gemm_bytes);
}

void run(const CrossEntropyAttrs& attrs, cpu::Context& context, const Views& views) {
  const Problem problem(attrs, views.in);
  const Levels levels = context.levels(attrs.axes, TrafficClass::kTensor);
  const VocabularyEntries entries = entries_here(attrs, levels, problem.vocab);
  const auto* x = views.in[0].as<const std::byte>();
  const void* head = views.in[1].data;
  const std::span labels(views.in[2].as<const std::int32_t>(),
                         static_cast<std::size_t>(problem.rows));
  check_labels(labels, problem.is_cut ? attrs.whole_vocab : entries.count);
  const std::size_t first_gradient = attrs.loss ? 1 : 0;
  auto* hidden_gradient =
      attrs.gradients ? cpu::flat<std::byte>(views.out[first_gradient]).data() : nullptr;
  void* head_gradient = attrs.makes_head_gradient() ? views.out[first_gradient + 1].data : nullptr;

  std::byte* workspace = views.workspace.data();
  auto* logits = reinterpret_cast<float*>(workspace);
  workspace += problem.logits_bytes();
  void* dlogits = problem.gradient_bytes() > 0 ? static_cast<void*>(workspace) : logits;
  workspace += problem.gradient_bytes();
  auto* row_loss = reinterpret_cast<double*>(workspace);
  workspace += Problem::loss_bytes(problem.chunk);
  auto* sums = reinterpret_cast<cpu::RowSum*>(workspace);
  workspace += problem.sums_bytes();
  auto* moved = reinterpret_cast<float*>(workspace);
  workspace += problem.moved_bytes();
  const std::span gemm_workspace(workspace, views.workspace.data() + views.workspace.size());

  const auto element = static_cast<std::int64_t>(size_bytes(problem.dtype));
  double loss = 0.0;
  for (std::int64_t row = 0; row < problem.rows; row += problem.chunk) {
    const std::int64_t m = std::min(problem.chunk, problem.rows - row);
    const std::byte* x_chunk = x + row * problem.pitch * element;
    cpu::run_gemm(context, problem.logits(m), x_chunk, head, logits, gemm_workspace);
    const cpu::SoftmaxRows softmax = {.logits = logits,
                                      .labels = labels.data() + row,
                                      .rows = m,
                                      .vocab = entries.count,
                                      .padding = problem.vocab - entries.count,
                                      .first_label = entries.first,
                                      .seed = *views.in[3].as<const float>(),
                                      .row_loss = attrs.loss ? row_loss : nullptr,
                                      .gradient = attrs.gradients ? dlogits : nullptr,
                                      .gradient_dtype = problem.dtype};
    if (problem.is_cut) {
      cpu::softmax_sums(softmax, sums, context.threads());
      join({sums, static_cast<std::size_t>(m)},
           labels.subspan(static_cast<std::size_t>(row)),
           levels,
           moved);
      cpu::softmax_of_sums(softmax, sums, context.threads());
    } else {
      cpu::softmax_cross_entropy(softmax, context.threads());
    }
    for (std::int64_t i = 0; attrs.loss && i < m; ++i) {
      loss += row_loss[i];
    }
    if (attrs.gradients) {
      run_gradients(context,
                    problem,
                    m,
                    {.dlogits = dlogits,
                     .head = head,
                     .x = x_chunk,
                     .dx = hidden_gradient + row * problem.channels * element,
                     .dhead = head_gradient,
                     .accumulate = attrs.accumulate || row > 0},
                    gemm_workspace);
    }
  }
  if (attrs.loss) {
    *views.out[0].as<float>() = static_cast<float>(loss);
  }
}

}  // namespace tessera
