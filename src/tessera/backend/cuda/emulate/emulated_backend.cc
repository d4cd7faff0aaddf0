#include "tessera/backend/cuda/emulate/emulated_backend.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/backend/cuda/context.h"
#include "tessera/backend/cuda/dispatch.h"
#include "tessera/backend/cuda/draw.h"
#include "tessera/backend/cuda/emulate/emulate.h"
#include "tessera/backend/cuda/fault.h"
#include "tessera/backend/cuda/gemm.h"
#include "tessera/backend/null/null_backend.h"

namespace tessera::cuda {
namespace {

ThreadOrder other_than(ThreadOrder order) {
  return order == ThreadOrder::kForward ? ThreadOrder::kBackward : ThreadOrder::kForward;
}

// The CPU backend's products, which tests of its own hold to their reference.
class CpuGemms final : public Gemms {
 public:
  void run(CUstream_st* /*stream*/,
           const Gemm& gemm,
           const GemmOperands& operands,
           std::span<std::byte> /*workspace*/) override {
    // The workspace that a device gets is of another size.
    workspace_.resize(static_cast<std::size_t>(cpu::gemm_workspace_bytes(context_, gemm)));
    cpu::run_gemm(context_, gemm, operands.a, operands.b, operands.c, workspace_);
  }

 private:
  cpu::Context context_ = cpu::Context(1);
  std::vector<std::byte> workspace_;
};

// In which order the next backend's threads begin: each begins in the other one.
ThreadOrder next_order() {
  static ThreadOrder next = ThreadOrder::kForward;
  return next = other_than(next);
}

class EmulatedBackend final : public Backend {
 public:
  std::string_view name() const override { return "emulated cuda"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return memory_->allocate(bytes); }

  void draw(const Draw& draw, const View& out) override { draw_elements(context_, draw, out); }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return op_workspace_bytes(op, operands, results);
  }

  // In the other order of threads each time: what is run again must give the same bits.
  void run(const Op& op, const Views& views, StreamId /*stream*/) override {
    order_ = other_than(order_);
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
  CpuGemms gemms_;
  ThreadOrder order_ = next_order();
  Fault fault_;
  Context context_ = Context(nullptr, &fault_, gemms_, 1);
};

}  // namespace

std::unique_ptr<Backend> make_emulated_backend() {
  return std::make_unique<EmulatedBackend>();
}

}  // namespace tessera::cuda
