#include "tessera/backend/cuda/emulate/emulated_backend.h"

#include <cstddef>
#include <cstdint>

#include "tessera/backend/cuda/context.h"
#include "tessera/backend/cuda/dispatch.h"
#include "tessera/backend/cuda/emulate/emulate.h"
#include "tessera/backend/cuda/fault.h"
#include "tessera/backend/cuda/gemm.h"
#include "tessera/backend/null/null_backend.h"
#include "tessera/base/half.h"

namespace tessera::cuda {
namespace {

double element(const void* data, DType dtype, std::int64_t index) {
  return dtype == DType::kF32 ? double{static_cast<const float*>(data)[index]}
                              : double{to_float(static_cast<const BFloat16*>(data)[index])};
}

class LoopGemms final : public Gemms {
 public:
  void run(CUstream_st* /*stream*/,
           const Gemm& gemm,
           const GemmOperands& operands,
           std::span<std::byte> /*workspace*/) override {
    for (std::int64_t i = 0; i < gemm.m; ++i) {
      for (std::int64_t j = 0; j < gemm.n; ++j) {
        write(gemm, operands.c, i * gemm.pitch_c + j, product(gemm, operands, i, j));
      }
    }
  }

 private:
  static double product(const Gemm& gemm,
                        const GemmOperands& operands,
                        std::int64_t i,
                        std::int64_t j) {
    double sum = 0;
    for (std::int64_t k = 0; k < gemm.k; ++k) {
      const std::int64_t a = gemm.transpose_a ? k * gemm.pitch_a + i : i * gemm.pitch_a + k;
      const std::int64_t b = gemm.transpose_b ? j * gemm.pitch_b + k : k * gemm.pitch_b + j;
      sum += element(operands.a, gemm.input, a) * element(operands.b, gemm.input, b);
    }
    return sum;
  }

  static void write(const Gemm& gemm, void* c, std::int64_t place, double value) {
    const double before = gemm.accumulate ? element(c, gemm.output, place) : 0.0;
    const auto sum = static_cast<float>(before + value);
    if (gemm.output == DType::kF32) {
      static_cast<float*>(c)[place] = sum;
    } else {
      static_cast<BFloat16*>(c)[place] = to_bfloat16(sum);
    }
  }
};

class EmulatedBackend final : public Backend {
 public:
  std::string_view name() const override { return "emulated cuda"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return memory_->allocate(bytes); }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return op_workspace_bytes(op, operands, results);
  }

  // In the other order of threads each time: what is run again must give the same bits.
  void run(const Op& op, const Views& views, StreamId /*stream*/) override {
    order_ = order_ == ThreadOrder::kForward ? ThreadOrder::kBackward : ThreadOrder::kForward;
    set_thread_order(order_);
    run_op(context_, op, views);
  }

  void synchronize() override {
    const Fault found = fault_;
    fault_ = {};
    throw_fault(found);
  }

  void abort(std::string_view /*reason*/) override {}

 private:
  std::unique_ptr<Backend> memory_ = make_null_backend();
  LoopGemms gemms_;
  ThreadOrder order_ = ThreadOrder::kForward;
  Fault fault_;
  Context context_ = Context(nullptr, &fault_, gemms_, 1);
};

}  // namespace

std::unique_ptr<Backend> make_emulated_backend() {
  return std::make_unique<EmulatedBackend>();
}

}  // namespace tessera::cuda
