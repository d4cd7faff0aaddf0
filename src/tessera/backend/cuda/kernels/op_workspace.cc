#include "tessera/backend/cuda/kernels/op_workspace.h"

#include <concepts>
#include <type_traits>
#include <variant>

#include "tessera/backend/view_types.h"
#include "tessera/ops/all_ops.h"

namespace tessera::cuda {
namespace {

template <class A>
concept HasCudaWorkspace = requires(const A& attrs, std::span<const View> views) {
  { cuda_workspace_bytes(attrs, views, views) } -> std::same_as<std::int64_t>;
};

}  // namespace

std::int64_t op_workspace_bytes(const Op& op,
                                std::span<const View> operands,
                                std::span<const View> results) {
  return std::visit(
      [&](const auto& attrs) -> std::int64_t {
        using A = std::decay_t<decltype(attrs)>;
        if constexpr (HasCudaWorkspace<A>) {
          return cuda_workspace_bytes(attrs, operands, results);
        } else if constexpr (WorkspaceOfAnyBackend<A>) {
          return workspace_bytes(attrs, types_of(operands));
        } else {
          return 0;
        }
      },
      op.attrs());
}

}  // namespace tessera::cuda
