#include <algorithm>
#include <cstring>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/base/error.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/cross_entropy/softmax_cpu.h"

namespace tessera {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The op's numbers and the parts of its workspace, in order: logits, their gradient in the inputs'
// dtype (when that is not f32), losses by row, and the products' own workspace.
struct Layout {
  std::int64_t rows;
  std::int64_t channels;
  std::int64_t vocab;
  std::int64_t chunk;
  std::int64_t pitch;  // of x and dx
  DType dtype;

  std::int64_t logits_bytes() const { return aligned(chunk * vocab * 4); }

  std::int64_t gradient_bytes() const {
    return dtype == DType::kF32 ? 0 : aligned(chunk * vocab * 2);
  }

  std::int64_t loss_bytes() const { return aligned(chunk * 8); }

  cpu::Gemm logits(std::int64_t m) const {
    return {.m = m,
            .n = vocab,
            .k = channels,
            .transpose_b = true,
            .pitch_a = pitch,
            .pitch_b = channels,
            .pitch_c = vocab,
            .input = dtype};
  }

  cpu::Gemm hidden_gradient(std::int64_t m) const {
    return {.m = m,
            .n = channels,
            .k = vocab,
            .pitch_a = vocab,
            .pitch_b = channels,
            .pitch_c = channels,
            .input = dtype,
            .output = dtype};
  }

  cpu::Gemm head_gradient(std::int64_t m, bool accumulate) const {
    return {.m = vocab,
            .n = channels,
            .k = m,
            .transpose_a = true,
            .pitch_a = vocab,
            .pitch_b = pitch,
            .pitch_c = channels,
            .input = dtype,
            .accumulate = accumulate};
  }
};

Layout layout_of(const CrossEntropyAttrs& attrs, std::span<const View> operands) {
  const View::Rows rows = operands[0].rows(1);
  return {.rows = rows.count,
          .channels = rows.width,
          .vocab = operands[1].sizes[0],
          .chunk = std::min(attrs.chunk, rows.count),
          .pitch = rows.stride,
          .dtype = operands[0].dtype};
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

}  // namespace

std::int64_t workspace_bytes(const CrossEntropyAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View>) {
  const Layout layout = layout_of(attrs, operands);
  std::int64_t gemm_bytes = 0;
  const auto consider = [&](const cpu::Gemm& gemm) {
    gemm_bytes = std::max(gemm_bytes, cpu::gemm_workspace_bytes(context, gemm));
  };
  for (const std::int64_t m : {layout.chunk, layout.rows % layout.chunk}) {
    if (m == 0) {
      continue;
    }
    consider(layout.logits(m));
    if (attrs.gradients) {
      consider(layout.hidden_gradient(m));
      consider(layout.head_gradient(m, false));
      consider(layout.head_gradient(m, true));
    }
  }
  return layout.logits_bytes() + layout.gradient_bytes() + layout.loss_bytes() +
         aligned(gemm_bytes);
}

void run(const CrossEntropyAttrs& attrs, cpu::Context& context, const Views& views) {
  const Layout layout = layout_of(attrs, views.in);
  const auto* x = views.in[0].as<const std::byte>();
  const void* head = views.in[1].data;
  const std::span labels(views.in[2].as<const std::int32_t>(),
                         static_cast<std::size_t>(layout.rows));
  check_labels(labels, layout.vocab);
  const std::size_t first_gradient = attrs.loss ? 1 : 0;
  auto* hidden_gradient = attrs.gradients ? views.out[first_gradient].as<std::byte>() : nullptr;
  void* head_gradient = attrs.gradients ? views.out[first_gradient + 1].data : nullptr;

  std::byte* workspace = views.workspace.data();
  auto* logits = reinterpret_cast<float*>(workspace);
  workspace += layout.logits_bytes();
  void* dlogits = layout.gradient_bytes() > 0 ? static_cast<void*>(workspace) : logits;
  workspace += layout.gradient_bytes();
  auto* row_loss = reinterpret_cast<double*>(workspace);
  workspace += layout.loss_bytes();
  const std::span gemm_workspace(workspace, views.workspace.data() + views.workspace.size());

  const auto element = static_cast<std::int64_t>(size_bytes(layout.dtype));
  double loss = 0.0;
  for (std::int64_t row = 0; row < layout.rows; row += layout.chunk) {
    const std::int64_t m = std::min(layout.chunk, layout.rows - row);
    const std::byte* x_chunk = x + row * layout.pitch * element;
    cpu::run_gemm(context, layout.logits(m), x_chunk, head, logits, gemm_workspace);
    cpu::softmax_cross_entropy({.logits = logits,
                                .labels = labels.data() + row,
                                .rows = m,
                                .vocab = layout.vocab,
                                .seed = *views.in[3].as<const float>(),
                                .row_loss = attrs.loss ? row_loss : nullptr,
                                .gradient = attrs.gradients ? dlogits : nullptr,
                                .gradient_dtype = layout.dtype},
                               context.threads());
    for (std::int64_t i = 0; attrs.loss && i < m; ++i) {
      loss += row_loss[i];
    }
    if (attrs.gradients) {
      cpu::run_gemm(context,
                    layout.hidden_gradient(m),
                    dlogits,
                    head,
                    hidden_gradient + row * layout.channels * element,
                    gemm_workspace);
      cpu::run_gemm(context,
                    layout.head_gradient(m, attrs.accumulate || row > 0),
                    dlogits,
                    x_chunk,
                    head_gradient,
                    gemm_workspace);
    }
  }
  if (attrs.loss) {
    *views.out[0].as<float>() = static_cast<float>(loss);
  }
}

}  // namespace tessera
