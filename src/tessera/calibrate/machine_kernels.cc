#include "tessera/calibrate/machine_kernels.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/swiglu/swiglu.h"

namespace tessera {
namespace {

TensorType tensor(DType dtype, std::initializer_list<std::int64_t> bounds) {
  TensorType type = {.dtype = dtype, .dims = {}};
  for (const std::int64_t bound : bounds) {
    type.dims.push_back({.name = format("d{}", type.dims.size()), .bound = bound});
  }
  return type;
}

class Kernels {
 public:
  explicit Kernels(DType dtype) : dtype_(dtype) {}

  std::vector<MachineKernel> all() {
    for (const std::int64_t tokens : {64, 256, 1024}) {
      add_products(tokens, 512, 512);
      add_products(tokens, 1536, 512);
      add_products(tokens, 512, 1536);
    }
    add_products(512, 2048, 2048);
    add_attention(8, 128, 8, 64);
    add_attention(2, 512, 8, 64);
    add_attention(1, 1024, 8, 64);
    add_attention(1, 1024, 4, 128);
    for (const std::int64_t rows : {32, 512, 4096, 16384}) {
      add_streams(rows, 1024);
    }
    return std::move(kernels_);
  }

 private:
  void add(KernelFamily family, std::string what, OpRef op, TensorTypes operands) {
    kernels_.push_back({.family = family,
                        .what = format("{}, {}", std::move(what), name(dtype_)),
                        .op = std::move(op),
                        .operands = std::move(operands)});
  }

  // y (tokens, out) of x (tokens, in), and both gradients.
  void add_products(std::int64_t tokens, std::int64_t out, std::int64_t in) {
    const TensorType x = tensor(dtype_, {tokens, in});
    const TensorType y = tensor(dtype_, {tokens, out});
    const TensorType weight = tensor(dtype_, {out, in});
    const std::string shape = format("product of {} rows, {} to {}", tokens, in, out);
    add(KernelFamily::kProduct,
        shape,
        make_op(MatmulAttrs{.transpose_b = true, .dtype = dtype_}),
        {x, weight});
    add(KernelFamily::kProduct,
        shape + " (of x's gradient)",
        make_op(MatmulAttrs{.dtype = dtype_}),
        {y, weight});
    add(KernelFamily::kProduct,
        shape + " (of the weight's gradient)",
        make_op(MatmulAttrs{.transpose_a = true}),
        {y, x});
  }

  void add_attention(std::int64_t batch,
                     std::int64_t tokens,
                     std::int64_t heads,
                     std::int64_t channels) {
    const TensorType q = tensor(dtype_, {batch, tokens, heads, channels});
    const TensorType ids = tensor(DType::kI32, {batch, tokens});
    const TensorType lse = tensor(DType::kF32, {batch, heads, tokens});
    const std::string shape =
        format("attention of {} rows of {} tokens, {} heads of {}", batch, tokens, heads, channels);
    add(KernelFamily::kAttention,
        shape,
        make_op(AttentionAttrs{.whole_rows = true}),
        {q, q, q, ids, ids, ids, ids});
    add(KernelFamily::kAttention,
        shape + " (gradients)",
        make_op(AttentionBackwardAttrs{.whole_rows = true}),
        {q, q, q, q, q, lse, ids, ids, ids, ids});
  }

  void add_streams(std::int64_t rows, std::int64_t width) {
    const TensorType x = tensor(dtype_, {rows, width});
    const TensorType gain = tensor(dtype_, {width});
    const TensorType rstd = tensor(DType::kF32, {rows});
    const std::string shape = format("of {} rows of {}", rows, width);
    add(KernelFamily::kStream, "sum " + shape, make_op(AddAttrs{}), {x, x});
    add(KernelFamily::kStream, "norm " + shape, make_op(RmsNormAttrs{}), {x, gain});
    add(KernelFamily::kStream,
        "gradients of the norm " + shape,
        make_op(RmsNormBackwardAttrs{.residual = true}),
        {x, x, gain, rstd, x});
    add(KernelFamily::kStream, "swiglu " + shape, make_op(SwigluAttrs{}), {x, x});
    add(KernelFamily::kStream,
        "gradients of swiglu " + shape,
        make_op(SwigluBackwardAttrs{}),
        {x, x, x});
  }

  DType dtype_;
  std::vector<MachineKernel> kernels_;
};

}  // namespace

std::vector<MachineKernel> machine_kernels(DType dtype) {
  return Kernels(dtype).all();
}

}  // namespace tessera
