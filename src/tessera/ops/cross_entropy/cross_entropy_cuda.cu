#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/products/gemm.h"
#include "tessera/ops/cross_entropy/cross_entropy_cuda.h"
#include "tessera/ops/cross_entropy/loss_of_codes.h"

namespace tessera {
namespace cuda {
namespace {

// Threads of a block that works on a row. Two blocks share a multiprocessor, and no more of them
// are started: what they read twice, 264 rows, may then still be in the cache (50 MB of an H100's)
// the second time.
constexpr int kRowThreads = 512;
constexpr int kRowBlocks = 2;

// The softmax part over a chunk of rows.
struct Softmax {
  void* logits;                // (rows, vocab)
  const std::int32_t* labels;  // (rows); negative: ignored
  std::int64_t first_row;      // of the chunk
  std::int64_t vocab;
  std::int64_t counts;       // entries of a row that are no padding
  std::int64_t first_entry;  // of the whole vocabulary,
  std::int64_t limit;        // which has so many
  const float* seed;
  RowSums* sums;        // of all shards of a row; null: a row is whole
  double* row_loss;     // or null
  bool makes_gradient;  // of each row, in the inputs' dtype, over the row
  float softcap;        // which logits are to be put under; 0: none
  Fault* fault;
};

// Puts logits under a cap; none where it is 0, which is known when it is compiled: no register is
// kept for it.
template <bool kCapped>
struct Cap {
  float cap;

  __device__ float operator()(float logit) const {
    return kCapped ? cap * tanhf(logit / cap) : logit;
  }

  template <int N>
  __device__ void put_over(Floats<N>& logits) const {
    for (int i = 0; kCapped && i < N; ++i) {
      logits.at[i] = (*this)(logits.at[i]);
    }
  }

  // How much of a change before the cap is left after it, at a logit that is under it.
  __device__ float slope(float logit) const {
    const float part = logit / cap;
    return 1.0F - part * part;
  }
};

// The first `count` of the pack of logits at `place`, with -inf behind them.
template <int N, class L, class C>
__device__ Floats<N> load_logits(const L* place, std::int64_t count, const C& cap) {
  Floats<N> values = load<N>(place);
  cap.put_over(values);
  if (count < N) {
    for (int i = 0; i < N; ++i) {
      values.at[i] = i < count ? values.at[i] : -INFINITY;
    }
  }
  return values;
}

// In one pass over the row, two packs at a time, both on their way before either is used: a thread
// scales what it has whenever it meets a larger one (Milakov & Gimelshein 2018, arXiv:1805.02867).
// Where nothing counts the total is zero.
template <int N, class L, class C>
__device__ RowSums sums_of_row(const L* logits, std::int64_t counts, const C& cap) {
  constexpr std::int64_t kStep = std::int64_t{kRowThreads} * N;
  float largest = -INFINITY;
  double partial = 0.0;
#pragma unroll 1
  for (std::int64_t i = std::int64_t{threadIdx.x} * N; i < counts; i += 2 * kStep) {
    const bool has_second = i + kStep < counts;
    const Floats<N> first = load_logits<N>(logits + i, counts - i, cap);
    // Where there is no second one, the first one again: a load without a branch.
    const Floats<N> second = load_logits<N>(
        logits + (has_second ? i + kStep : i), counts - (has_second ? i + kStep : i), cap);
    float top = first.at[0];
    for (int k = 0; k < N; ++k) {
      top = fmaxf(top, fmaxf(first.at[k], second.at[k]));
    }
    if (top > largest) {
      partial *= static_cast<double>(expf(largest - top));
      largest = top;
    }
    float sum = 0.0F;
    for (int k = 0; k < N; ++k) {
      sum += quick_exp(first.at[k] - largest);
    }
    if (has_second) {
      for (int k = 0; k < N; ++k) {
        sum += quick_exp(second.at[k] - largest);
      }
    }
    partial += static_cast<double>(sum);
  }
  const float shift = block_max<kRowThreads>(largest);
  if (partial != 0.0) {
    partial *= static_cast<double>(expf(largest - shift));
  }
  return {.largest = shift, .total = block_sum<kRowThreads>(partial)};
}

// The label of a row, negative where it is ignored.
__device__ inline std::int32_t label_of(const Softmax& task, std::int64_t row) {
  const std::int32_t label = task.labels[row];
  if (label >= task.limit) {
    report(task.fault, FaultKind::kLabel, label, task.first_row + row, task.limit);
    return -1;
  }
  return label;
}

// Where the label of a row stands among the logits here, or -1.
__device__ inline std::int64_t place_of(std::int32_t label, const Softmax& task) {
  const std::int64_t entry = label - task.first_entry;
  return label >= 0 && entry >= 0 && entry < task.counts ? entry : -1;
}

// The gradient of a row's loss for its logits, over them; that of an ignored row is 0. What is
// narrower than the logits is written over those that were read in this round or earlier ones: all
// threads of the block go through the row side by side, with a barrier between. Else a thread
// writes where it read. The next round's logits are on their way while this one's are used.
template <int N, class T, class L, bool kCapped>
__device__ void write_gradient(const Softmax& task,
                               L* logits,
                               std::int32_t label,
                               const RowSums& sums,
                               const Cap<kCapped>& cap) {
  constexpr std::int64_t kStep = std::int64_t{kRowThreads} * N;
  T* const gradient = reinterpret_cast<T*>(logits);
  const std::int64_t place = place_of(label, task);
  const std::int64_t counts = label < 0 ? 0 : task.counts;
  const float seed = *task.seed;
  const float factor = seed / static_cast<float>(sums.total);
  std::int64_t i = std::int64_t{threadIdx.x} * N;
  Floats<N> coming = {};
  if (i < task.vocab) {
    coming = load<N>(logits + i);
  }
#pragma unroll 1  // nvcc 13.0 takes the packs apart where it unrolls
  for (std::int64_t round = 0; round < task.vocab; round += kStep, i += kStep) {
    Floats<N> shares = coming;
    if (i + kStep < task.vocab) {
      coming = load<N>(logits + i + kStep);
    }
    if constexpr (sizeof(T) < sizeof(L)) {
      __syncthreads();
    }
    cap.put_over(shares);
    for (int k = 0; k < N; ++k) {
      const float logit = shares.at[k];
      const float share = factor * quick_exp(logit - sums.largest);
      const float pull = i + k == place ? seed : 0.0F;
      const float slope = kCapped ? cap.slope(logit) : 1.0F;
      shares.at[k] = i + k < counts ? (share - pull) * slope : 0.0F;
    }
    if (i < task.vocab) {
      store(gradient + i, shares);
    }
  }
}

// A block takes a row. The logits that it reads all over the row are read before the barrier.
template <int N, class L, class T, bool kCapped>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    softmax_rows(Softmax task, std::int64_t rows) {
  const Cap<kCapped> cap = {.cap = task.softcap};
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    L* const logits = static_cast<L*>(task.logits) + row * task.vocab;
    const std::int32_t label = label_of(task, row);
    const std::int64_t place = place_of(label, task);
    const RowSums sums =
        task.sums == nullptr ? sums_of_row<N>(logits, task.counts, cap) : task.sums[row];
    const double of_label = place < 0 ? 0.0 : static_cast<double>(cap(widen(logits[place])));
    __syncthreads();
    if (threadIdx.x == 0 && task.row_loss != nullptr) {
      const double loss = log(sums.total) + (static_cast<double>(sums.largest) - of_label);
      task.row_loss[row] = place < 0 ? 0.0 : loss;
    }
    if (task.makes_gradient) {
      write_gradient<N, T>(task, logits, label, sums, cap);
    }
  }
}

// The sums of rows' shards, and their shifts for the others: a shard whose exponentials are all
// zero has no say.
template <int N, class L, bool kCapped>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    sum_shards(Softmax task, std::int64_t rows, float* moved) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const L* const logits = static_cast<const L*>(task.logits) + row * task.vocab;
    RowSums sums = sums_of_row<N>(logits, task.counts, Cap<kCapped>{.cap = task.softcap});
    if (label_of(task, row) < 0) {
      sums.total = 0.0;
    }
    if (threadIdx.x == 0) {
      task.sums[row] = sums;
      moved[row] = sums.total == 0.0 ? -INFINITY : sums.largest;
    }
  }
}

// Brings the sums to the shift that all shards agree on.
__global__ void shift_sums(RowSums* sums, float* moved, std::int64_t rows) {
  for (std::int64_t row = first_item(); row < rows; row += num_threads()) {
    RowSums& sum = sums[row];
    if (sum.total != 0.0) {
      sum.total *= exp(static_cast<double>(sum.largest) - static_cast<double>(moved[row]));
    }
    sum.largest = moved[row];
    moved[row] = static_cast<float>(sum.total);
  }
}

__global__ void take_totals(RowSums* sums, const float* moved, std::int64_t rows) {
  for (std::int64_t row = first_item(); row < rows; row += num_threads()) {
    sums[row].total = static_cast<double>(moved[row]);
  }
}

std::int64_t num_row_blocks(const Context& context, std::int64_t rows) {
  return std::min<std::int64_t>(rows, std::int64_t{kRowBlocks} * context.multiprocessors());
}

// Calls body.operator()<kCapped>().
template <class Body>
void with_cap(const Softmax& task, const Body& body) {
  if (task.softcap > 0.0F) {
    body.template operator()<true>();
  } else {
    body.template operator()<false>();
  }
}

// Makes task.sums those of whole rows, of which this rank has a shard.
void join_shards(Context& context,
                 DType stored,
                 const Softmax& task,
                 std::int64_t rows,
                 float* moved,
                 Levels levels) {
  const char* const name = "cross_entropy";
  const Elements elements = {
      .dtype = DType::kF32, .data = reinterpret_cast<std::byte*>(moved), .count = rows};
  with_type(stored, [&](auto logit) {
    with_cap(task, [&]<bool kCapped>() {
      using L = decltype(logit);
      launch<kRowThreads>(
          context,
          name,
          num_row_blocks(context, rows),
          task.vocab % kPack == 0 ? sum_shards<kPack, L, kCapped> : sum_shards<1, L, kCapped>,
          task,
          rows,
          moved);
    });
  });
  all_reduce(Fold::kMax, levels, elements, elements, context.mover());
  launch(context, name, blocks_for(context, rows), shift_sums, task.sums, moved, rows);
  all_reduce(Fold::kSum, levels, elements, elements, context.mover());
  launch(context, name, blocks_for(context, rows), take_totals, task.sums, moved, rows);
}

template <class L, class T>
void launch_softmax(const Context& context, const Softmax& task, std::int64_t rows) {
  with_cap(task, [&]<bool kCapped>() {
    launch<kRowThreads>(context,
                        "cross_entropy",
                        num_row_blocks(context, rows),
                        task.vocab % kPack == 0 ? softmax_rows<kPack, L, T, kCapped>
                                                : softmax_rows<1, L, T, kCapped>,
                        task,
                        rows);
  });
}

void launch_softmax(const Context& context,
                    const CudaProblem& problem,
                    const Softmax& task,
                    std::int64_t rows) {
  if (problem.stored == DType::kBF16) {
    launch_softmax<BFloat16, BFloat16>(context, task, rows);
  } else {
    with_type(problem.dtype,
              [&](auto element) { launch_softmax<float, decltype(element)>(context, task, rows); });
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

struct Parts {
  void* logits;
  double* row_loss;
  RowSums* sums;  // null unless the vocabulary is cut
  float* moved;
  std::byte* codes;
  std::span<std::byte> products;

  Parts(const CudaProblem& problem, std::int64_t bytes_of_codes, std::span<std::byte> workspace) {
    WorkspaceParts parts = {.rest = workspace};
    logits = parts.take<std::byte>(problem.logits_bytes());
    row_loss = parts.take<double>(CudaProblem::loss_bytes(problem.rows));
    sums = problem.is_cut ? parts.take<RowSums>(problem.sums_bytes()) : nullptr;
    moved = parts.take<float>(problem.moved_bytes());
    codes = parts.take<std::byte>(bytes_of_codes);
    products = parts.rest;
  }
};

// The products of values; those of codes are LossOfCodes'.
class LossOfValues {
 public:
  LossOfValues(const CrossEntropyAttrs& attrs,
               const CudaProblem& problem,
               const CrossEntropyOperands& of)
      : attrs_(attrs), problem_(problem), of_(of) {}

  void make_logits(Context& context,
                   const RowChunk& rows,
                   void* to,
                   std::span<std::byte> workspace) const {
    multiply(context,
             problem_.logits(rows.count),
             {.a = x(rows), .b = of_.head.data, .c = to},
             workspace);
  }

  void make_gradients(Context& context,
                      const RowChunk& rows,
                      const void* dlogits,
                      bool accumulate,
                      std::span<std::byte> workspace) const {
    std::byte* const dx = of_.dx.as<std::byte>();
    multiply(
        context,
        problem_.hidden_gradient(rows.count, problem_.pitch_dlogits()),
        {.a = dlogits, .b = of_.head.data, .c = dx + rows.first * problem_.channels * element()},
        workspace);
    if (attrs_.makes_head_gradient()) {
      multiply(context,
               problem_.head_gradient(rows.count, problem_.pitch_dlogits(), accumulate),
               {.a = dlogits, .b = x(rows), .c = of_.dhead.data},
               workspace);
    }
  }

 private:
  static void multiply(Context& context,
                       const Gemm& gemm,
                       const GemmOperands& operands,
                       std::span<std::byte> workspace) {
    context.gemms().run(context.stream(), gemm, operands, workspace);
  }

  std::int64_t element() const { return static_cast<std::int64_t>(size_bytes(problem_.dtype)); }

  const void* x(const RowChunk& rows) const {
    return of_.x.as<const std::byte>() + rows.first * problem_.pitch * element();
  }

  const CrossEntropyAttrs& attrs_;
  const CudaProblem& problem_;
  const CrossEntropyOperands& of_;
};

// `Loss` makes logits and what their gradient makes.
template <class Loss>
void run_chunks(const CrossEntropyAttrs& attrs,
                Context& context,
                const CrossEntropyOperands& of,
                const CudaProblem& problem,
                const Parts& parts,
                const Loss& products) {
  const Levels levels = context.levels(attrs.axes, TrafficClass::kTensor);
  const VocabularyEntries entries = entries_here(attrs, levels, problem.vocab);
  const auto* const labels = cpu::flat<const std::int32_t>(of.labels).data();
  for (std::int64_t row = 0; row < problem.rows; row += problem.chunk) {
    const RowChunk rows = {.first = row, .count = std::min(problem.chunk, problem.rows - row)};
    products.make_logits(context, rows, parts.logits, parts.products);
    const Softmax task = {.logits = parts.logits,
                          .labels = labels + row,
                          .first_row = row,
                          .vocab = problem.vocab,
                          .counts = entries.count,
                          .first_entry = entries.first,
                          .limit = problem.is_cut ? attrs.whole_vocab : entries.count,
                          .seed = of.seed.as<const float>(),
                          .sums = parts.sums,
                          .row_loss = attrs.loss ? parts.row_loss + row : nullptr,
                          .makes_gradient = attrs.gradients,
                          .softcap = static_cast<float>(attrs.softcap),
                          .fault = context.fault()};
    if (problem.is_cut) {
      join_shards(context, problem.stored, task, rows.count, parts.moved, levels);
    }
    launch_softmax(context, problem, task, rows.count);
    if (attrs.gradients) {
      products.make_gradients(
          context, rows, parts.logits, attrs.accumulate || row > 0, parts.products);
    }
  }
  if (attrs.loss) {
    launch(
        context, "cross_entropy", 1, sum_losses, parts.row_loss, problem.rows, of.loss.as<float>());
  }
}

}  // namespace
}  // namespace cuda

void run(const CrossEntropyAttrs& attrs, cuda::Context& context, const Views& views) {
  const CrossEntropyOperands of = by_name(attrs, views);
  const cuda::CudaProblem problem(attrs, of);
  if (!attrs.codes) {
    const cuda::Parts parts(problem, 0, views.workspace);
    const cuda::LossOfValues products(attrs, problem, of);
    cuda::run_chunks(attrs, context, of, problem, parts, products);
    return;
  }
  const auto loss = [&](std::byte* codes) {
    return LossOfCodes(attrs, problem.chunk, problem.stored, of, codes);
  };
  const cuda::Parts parts(problem, loss(nullptr).bytes_kept(), views.workspace);
  cuda::run_chunks(attrs, context, of, problem, parts, loss(parts.codes));
}

}  // namespace tessera
