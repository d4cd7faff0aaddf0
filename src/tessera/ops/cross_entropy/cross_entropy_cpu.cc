#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/ops/cross_entropy/cross_entropy_problem.h"
#include "tessera/ops/cross_entropy/loss_of_codes.h"
#include "tessera/ops/cross_entropy/softmax_cpu.h"

namespace tessera {
namespace {

// With the gradient of a chunk of logits in the inputs' dtype, where that is not f32, and what a
// vocabulary that is cut over axes needs behind it: the sums by row and what moves of them.
struct Problem : CrossEntropyProblem {
  bool is_cut;

  Problem(const CrossEntropyAttrs& attrs, const CrossEntropyOperands& of)
      : CrossEntropyProblem(attrs, of, DType::kF32), is_cut(!attrs.axes.empty()) {}

  std::int64_t gradient_bytes() const {
    return dtype == DType::kF32 ? 0 : aligned(chunk * vocab * 2);
  }

  std::int64_t sums_bytes() const {
    return is_cut ? aligned(chunk * static_cast<std::int64_t>(sizeof(cpu::RowSum))) : 0;
  }

  std::int64_t moved_bytes() const { return is_cut ? aligned(chunk * 4) : 0; }
};

// What is left of logits after a stay in memory as `dtype`.
void round_to(DType dtype, std::span<float> logits, ThreadTeam& team) {
  if (dtype == DType::kF32) {
    return;
  }
  const cpu::Work work = {.count = static_cast<std::int64_t>(logits.size())};
  cpu::parallel_ranges(team, work, [&](cpu::Range range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      float& logit = logits[static_cast<std::size_t>(i)];
      logit = to_float(to_bfloat16(logit));
    }
  });
}

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

struct Parts {
  float* logits;
  void* dlogits;  // may be logits
  double* row_loss;
  cpu::RowSum* sums;
  float* moved;
  std::byte* codes;
  std::span<std::byte> products;

  Parts(const Problem& problem, std::int64_t bytes_of_codes, std::span<std::byte> workspace) {
    WorkspaceParts parts = {.rest = workspace};
    logits = parts.take<float>(problem.logits_bytes());
    dlogits = parts.take<std::byte>(problem.gradient_bytes());
    if (problem.gradient_bytes() == 0) {
      dlogits = logits;
    }
    row_loss = parts.take<double>(Problem::loss_bytes(problem.chunk));
    sums = parts.take<cpu::RowSum>(problem.sums_bytes());
    moved = parts.take<float>(problem.moved_bytes());
    codes = parts.take<std::byte>(bytes_of_codes);
    products = parts.rest;
  }
};

// The products of values; those of codes are LossOfCodes'.
class LossOfValues {
 public:
  LossOfValues(const CrossEntropyAttrs& attrs,
               const Problem& problem,
               const CrossEntropyOperands& of)
      : attrs_(attrs), problem_(problem), of_(of) {}

  void make_logits(cpu::Context& context,
                   const RowChunk& rows,
                   float* to,
                   std::span<std::byte> workspace) const {
    cpu::run_gemm(context, problem_.logits(rows.count), x(rows), of_.head.data, to, workspace);
  }

  void make_gradients(cpu::Context& context,
                      const RowChunk& rows,
                      const void* dlogits,
                      bool accumulate,
                      std::span<std::byte> workspace) const {
    cpu::run_gemm(context,
                  problem_.hidden_gradient(rows.count, problem_.vocab),
                  dlogits,
                  of_.head.data,
                  cpu::flat<std::byte>(of_.dx).data() + rows.first * problem_.channels * element(),
                  workspace);
    if (attrs_.makes_head_gradient()) {
      cpu::run_gemm(context,
                    problem_.head_gradient(rows.count, problem_.vocab, accumulate),
                    dlogits,
                    x(rows),
                    of_.dhead.data,
                    workspace);
    }
  }

 private:
  std::int64_t element() const { return static_cast<std::int64_t>(size_bytes(problem_.dtype)); }

  const void* x(const RowChunk& rows) const {
    return of_.x.as<const std::byte>() + rows.first * problem_.pitch * element();
  }

  const CrossEntropyAttrs& attrs_;
  const Problem& problem_;
  const CrossEntropyOperands& of_;
};

// The most that a product of values takes.
std::int64_t workspace_of_products(const CrossEntropyAttrs& attrs,
                                   cpu::Context& context,
                                   const Problem& problem) {
  std::int64_t bytes = 0;
  const auto consider = [&](const Gemm& gemm) {
    bytes = std::max(bytes, cpu::gemm_workspace_bytes(context, gemm));
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
  return bytes;
}

// `Loss` makes logits and what their gradient makes.
template <class Loss>
void run_chunks(const CrossEntropyAttrs& attrs,
                cpu::Context& context,
                const CrossEntropyOperands& of,
                const Problem& problem,
                const Parts& parts,
                const Loss& products) {
  const Levels levels = context.levels(attrs.axes, TrafficClass::kTensor);
  const VocabularyEntries entries = entries_here(attrs, levels, problem.vocab);
  const std::span labels(of.labels.as<const std::int32_t>(),
                         static_cast<std::size_t>(problem.rows));
  check_labels(labels, problem.is_cut ? attrs.whole_vocab : entries.count);
  double loss = 0.0;
  for (std::int64_t row = 0; row < problem.rows; row += problem.chunk) {
    const RowChunk rows = {.first = row, .count = std::min(problem.chunk, problem.rows - row)};
    products.make_logits(context, rows, parts.logits, parts.products);
    const std::span logits(parts.logits, static_cast<std::size_t>(rows.count * problem.vocab));
    round_to(attrs.logits, logits, context.team());
    const auto softcap = static_cast<float>(attrs.softcap);
    if (softcap > 0.0F) {
      cpu::cap_logits(logits, softcap, context.team());
    }
    const cpu::SoftmaxRows softmax = {.logits = parts.logits,
                                      .labels = labels.data() + row,
                                      .rows = rows.count,
                                      .vocab = entries.count,
                                      .padding = problem.vocab - entries.count,
                                      .first_label = entries.first,
                                      .seed = *of.seed.as<const float>(),
                                      .row_loss = attrs.loss ? parts.row_loss : nullptr,
                                      .gradient = attrs.gradients ? parts.dlogits : nullptr,
                                      .gradient_dtype = problem.dtype,
                                      .softcap = softcap};
    if (problem.is_cut) {
      cpu::softmax_sums(softmax, parts.sums, context.team());
      join({parts.sums, static_cast<std::size_t>(rows.count)},
           labels.subspan(static_cast<std::size_t>(row)),
           levels,
           parts.moved);
      cpu::softmax_of_sums(softmax, parts.sums, context.team());
    } else {
      cpu::softmax_cross_entropy(softmax, context.team());
    }
    for (std::int64_t i = 0; attrs.loss && i < rows.count; ++i) {
      loss += parts.row_loss[i];
    }
    if (attrs.gradients) {
      products.make_gradients(
          context, rows, parts.dlogits, attrs.accumulate || row > 0, parts.products);
    }
  }
  if (attrs.loss) {
    *of.loss.as<float>() = static_cast<float>(loss);
  }
}

}  // namespace

std::int64_t workspace_bytes(const CrossEntropyAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  const Problem problem(attrs, of);
  const std::int64_t own = problem.logits_bytes() + problem.gradient_bytes() +
                           Problem::loss_bytes(problem.chunk) + problem.sums_bytes() +
                           problem.moved_bytes();
  if (attrs.codes) {
    const LossOfCodes products(attrs, problem.chunk, problem.stored, of, nullptr);
    const auto bytes_of = [&](const LossOfCodes::Product& product) {
      return workspace_bytes(product.attrs, context, product.in(), product.out());
    };
    return own + products.bytes_kept() + Problem::aligned(products.largest(bytes_of));
  }
  return own + Problem::aligned(workspace_of_products(attrs, context, problem));
}

void run(const CrossEntropyAttrs& attrs, cpu::Context& context, const Views& views) {
  const CrossEntropyOperands of = by_name(attrs, views);
  const Problem problem(attrs, of);
  if (!attrs.codes) {
    const Parts parts(problem, 0, views.workspace);
    run_chunks(attrs, context, of, problem, parts, LossOfValues(attrs, problem, of));
    return;
  }
  const auto loss = [&](std::byte* codes) {
    return LossOfCodes(attrs, problem.chunk, problem.stored, of, codes);
  };
  const Parts parts(problem, loss(nullptr).bytes_kept(), views.workspace);
  run_chunks(attrs, context, of, problem, parts, loss(parts.codes));
}

}  // namespace tessera
