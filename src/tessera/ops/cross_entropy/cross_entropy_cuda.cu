#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/gemm.h"
#include "tessera/ops/cross_entropy/cross_entropy_gemms.h"

namespace tessera {
namespace cuda {
namespace {

// Behind the common parts lies the products' own workspace. Losses are kept of all rows.
struct Problem : CrossEntropyProblem {
  std::int64_t counts;  // rows of the head that are no padding

  Problem(const CrossEntropyAttrs& attrs, std::span<const View> operands)
      : CrossEntropyProblem(attrs, operands), counts(attrs.vocab > 0 ? attrs.vocab : vocab) {}

  std::int64_t workspace_bytes() const {
    return logits_bytes() + gradient_bytes() + loss_bytes(rows) + kGemmWorkspaceBytes;
  }
};

// The softmax part over a chunk of rows.
struct Softmax {
  const float* logits;         // (rows, vocab)
  const std::int32_t* labels;  // (rows); negative: ignored
  std::int64_t first_row;      // of the chunk
  std::int64_t vocab;
  std::int64_t counts;  // entries of a row that are no padding
  const float* seed;
  double* row_loss;  // or null
  void* gradient;    // like logits in the inputs' dtype, or null; may be logits
  Fault* fault;
};

// What a block knows of its row's softmax.
struct RowSums {
  float largest;
  double total;  // of exp(logit - largest)
};

__device__ RowSums sums_of_row(const float* logits, std::int64_t counts) {
  float largest = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < counts; i += kThreads) {
    largest = fmaxf(largest, logits[i]);
  }
  largest = block_max(largest);
  double partial = 0.0;
  for (std::int64_t i = threadIdx.x; i < counts; i += kThreads) {
    partial += static_cast<double>(expf(logits[i] - largest));
  }
  return {.largest = largest, .total = block_sum(partial)};
}

// The gradient of a row's loss for its logits; gradient may be the logits. An ignored row's is 0.
template <class T>
__device__ void write_gradient(const Softmax& task,
                               const float* logits,
                               std::int32_t label,
                               const RowSums& sums,
                               T* gradient) {
  if (label < 0) {
    for (std::int64_t i = threadIdx.x; i < task.vocab; i += kThreads) {
      gradient[i] = narrow<T>(0.0F);
    }
    return;
  }
  const float factor = *task.seed / static_cast<float>(sums.total);
  for (std::int64_t i = threadIdx.x; i < task.vocab; i += kThreads) {
    const float share = i < task.counts ? factor * expf(logits[i] - sums.largest) : 0.0F;
    gradient[i] = narrow<T>(i == label ? share - *task.seed : share);
  }
}

// A block takes a row. A thread overwrites only logits that it alone still reads: all others of the
// row are done with them at the last barrier.
template <class T>
__global__ void softmax_rows(Softmax task, std::int64_t rows) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const logits = task.logits + row * task.vocab;
    std::int32_t label = task.labels[row];
    if (label >= task.counts) {
      report(task.fault, FaultKind::kLabel, label, task.first_row + row, task.counts);
      label = -1;
    }
    const RowSums sums = sums_of_row(logits, task.counts);
    const double of_label = label < 0 ? 0.0 : static_cast<double>(logits[label]);
    __syncthreads();
    if (threadIdx.x == 0 && task.row_loss != nullptr) {
      const double loss = log(sums.total) + (static_cast<double>(sums.largest) - of_label);
      task.row_loss[row] = label < 0 ? 0.0 : loss;
    }
    if (task.gradient != nullptr) {
      write_gradient(task, logits, label, sums, static_cast<T*>(task.gradient) + row * task.vocab);
    }
  }
}

// One block: the sum of all rows' losses.
__global__ void sum_losses(const double* row_loss, std::int64_t rows, float* loss) {
  double partial = 0.0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kThreads) {
    partial += row_loss[row];
  }
  const double total = block_sum(partial);
  if (threadIdx.x == 0) {
    *loss = static_cast<float>(total);
  }
}

// Cuts a workspace into its parts.
class Cutter {
 public:
  explicit Cutter(std::span<std::byte> workspace) : rest_(workspace) {}

  std::byte* take(std::int64_t bytes) {
    std::byte* const part = rest_.data();
    rest_ = rest_.subspan(static_cast<std::size_t>(bytes));
    return part;
  }

  std::span<std::byte> rest() const { return rest_; }

 private:
  std::span<std::byte> rest_;
};

}  // namespace
}  // namespace cuda

std::int64_t cuda_workspace_bytes(const CrossEntropyAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return cuda::Problem(attrs, operands).workspace_bytes();
}

void run(const CrossEntropyAttrs& attrs, cuda::Context& context, const Views& views) {
  TESSERA_REQUIRE(attrs.axes.empty(),
                  ErrorCode::kUnsupported,
                  "a vocabulary cut over {} on a CUDA device: this version runs one rank there",
                  attrs.axes);
  const cuda::Problem problem(attrs, views.in);
  const auto* const x = views.in[0].as<const std::byte>();
  const void* const head = views.in[1].data;
  const auto* const labels = cpu::flat<const std::int32_t>(views.in[2]).data();
  const std::size_t first_gradient = attrs.loss ? 1 : 0;
  auto* const dx = attrs.gradients ? views.out[first_gradient].as<std::byte>() : nullptr;
  void* const dhead = attrs.makes_head_gradient() ? views.out[first_gradient + 1].data : nullptr;

  cuda::Cutter workspace(views.workspace);
  auto* const logits = reinterpret_cast<float*>(workspace.take(problem.logits_bytes()));
  std::byte* const rounded = workspace.take(problem.gradient_bytes());
  void* const dlogits = problem.gradient_bytes() > 0 ? static_cast<void*>(rounded) : logits;
  auto* const row_loss =
      reinterpret_cast<double*>(workspace.take(cuda::Problem::loss_bytes(problem.rows)));

  const auto element = static_cast<std::int64_t>(size_bytes(problem.dtype));
  const auto multiply = [&](const Gemm& gemm, const cuda::GemmOperands& operands) {
    context.gemms().run(context.stream(), gemm, operands, workspace.rest());
  };
  for (std::int64_t row = 0; row < problem.rows; row += problem.chunk) {
    const std::int64_t m = std::min(problem.chunk, problem.rows - row);
    const std::byte* const x_chunk = x + row * problem.pitch * element;
    multiply(problem.logits(m), {.a = x_chunk, .b = head, .c = logits});
    const cuda::Softmax task = {.logits = logits,
                                .labels = labels + row,
                                .first_row = row,
                                .vocab = problem.vocab,
                                .counts = problem.counts,
                                .seed = views.in[3].as<const float>(),
                                .row_loss = attrs.loss ? row_loss + row : nullptr,
                                .gradient = attrs.gradients ? dlogits : nullptr,
                                .fault = context.fault()};
    cuda::with_type(problem.dtype, [&](auto type) {
      cuda::launch(context,
                   "cross_entropy",
                   cuda::blocks_of_rows(context, m),
                   cuda::softmax_rows<decltype(type)>,
                   task,
                   m);
    });
    if (attrs.gradients) {
      multiply(problem.hidden_gradient(m),
               {.a = dlogits, .b = head, .c = dx + row * problem.channels * element});
    }
    if (dhead != nullptr) {
      multiply(problem.head_gradient(m, attrs.accumulate || row > 0),
               {.a = dlogits, .b = x_chunk, .c = dhead});
    }
  }
  if (attrs.loss) {
    cuda::launch(context,
                 "cross_entropy",
                 1,
                 cuda::sum_losses,
                 row_loss,
                 problem.rows,
                 views.out[0].as<float>());
  }
}

}  // namespace tessera
