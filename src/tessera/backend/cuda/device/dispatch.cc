#include "tessera/backend/cuda/device/dispatch.h"

#include <concepts>
#include <type_traits>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"

namespace tessera::cuda {
namespace {

template <class A>
concept HasKernel = requires(const A& attrs, Context& context, const Views& views) {
  { run(attrs, context, views) } -> std::same_as<void>;
};

template <class A>
concept IsCollective = requires(const A& attrs, CollectiveContext& context, const Views& views) {
  { run(attrs, context, views) } -> std::same_as<void>;
};

}  // namespace

void run_op(Context& context, const Op& op, const Views& views) {
  std::visit(
      [&](const auto& attrs) {
        if constexpr (HasKernel<std::decay_t<decltype(attrs)>>) {
          run(attrs, context, views);
        } else {
          fail(ErrorCode::kUnsupported,
               "{} has no CUDA kernel in this version: set run.device = \"cpu\"",
               info(op).name);
        }
      },
      op.attrs());
}

bool waits_for_ranks(const Op& op, std::span<const TensorType> operands) {
  const bool is_collective = std::visit(
      [](const auto& attrs) { return IsCollective<std::decay_t<decltype(attrs)>>; }, op.attrs());
  return is_collective || !collectives(op, operands).empty();
}

}  // namespace tessera::cuda
