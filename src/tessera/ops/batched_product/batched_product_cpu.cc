#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/base/half.h"
#include "tessera/ops/batched_product/batched_product_problem.h"

namespace tessera {

namespace {

// Rounds the sums to the rows of a matrix.
void store_sums(const float* sums,
                const HeadMatrices& y,
                std::int64_t sequence,
                std::int64_t head) {
  for (std::int64_t row = 0; row < y.rows(); ++row) {
    const float* const from = sums + row * y.columns();
    std::byte* const to = y.at(sequence, head, row);
    if (y.dtype() == DType::kF32) {
      std::copy_n(from, y.columns(), reinterpret_cast<float*>(to));
    } else {
      std::transform(from, from + y.columns(), reinterpret_cast<BFloat16*>(to), to_bfloat16);
    }
  }
}

}  // namespace

std::int64_t workspace_bytes(const BatchedProductAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results) {
  const BatchedGemms all(attrs, by_name(attrs, {.in = operands, .out = results, .workspace = {}}));
  std::int64_t bytes = cpu::gemm_workspace_bytes(context, all.gemm);
  if (all.adds_group) {
    Gemm adding = all.gemm;
    adding.accumulate = true;
    bytes = std::max(bytes, cpu::gemm_workspace_bytes(context, adding));
  }
  return all.sum_bytes() + bytes;
}

void run(const BatchedProductAttrs& attrs, cpu::Context& context, const Views& views) {
  const BatchedGemms all(attrs, by_name(attrs, views));
  const std::span<std::byte> rest =
      views.workspace.subspan(static_cast<std::size_t>(all.sum_bytes()));
  auto* const sums = reinterpret_cast<float*>(views.workspace.data());
  for (std::int64_t sequence = 0; sequence < all.a.batch(); ++sequence) {
    for (std::int64_t head = 0; head < all.a.heads(); ++head) {
      const std::int64_t of_group = head / all.group;
      if (attrs.form != BatchedForm::kKeys) {
        cpu::run_gemm(context,
                      all.gemm,
                      all.a.at(sequence, head),
                      all.b.at(sequence, of_group),
                      all.y.at(sequence, head),
                      rest);
        continue;
      }
      Gemm gemm = all.gemm;
      gemm.accumulate = head % all.group > 0;
      void* const to = all.adds_group ? static_cast<void*>(sums) : all.y.at(sequence, of_group);
      cpu::run_gemm(context, gemm, all.a.at(sequence, head), all.b.at(sequence, head), to, rest);
      if (all.adds_group && (head + 1) % all.group == 0) {
        store_sums(sums, all.y, sequence, of_group);
      }
    }
  }
}

}  // namespace tessera
