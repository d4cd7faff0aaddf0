#include "tessera/backend/cpu/dispatch.h"

#include <type_traits>
#include <variant>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/view_types.h"
#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"

namespace tessera::cpu {
namespace {

template <class A>
concept ViewOp = std::same_as<A, SliceAttrs> || std::same_as<A, ConcatAttrs>;

template <class A>
concept HasKernel = requires(const A& attrs, Context& context, const Views& views) {
  { run(attrs, context, views) } -> std::same_as<void>;
};

// Workspace that depends on shapes only, or on how the tensors lie.
template <class A>
concept WorkspaceByType = requires(const A& attrs, Context& context, Types types) {
  { workspace_bytes(attrs, context, types) } -> std::same_as<std::int64_t>;
};

template <class A>
concept WorkspaceByView = requires(const A& attrs, Context& context, std::span<const View> views) {
  { workspace_bytes(attrs, context, views, views) } -> std::same_as<std::int64_t>;
};

}  // namespace

std::int64_t op_workspace_bytes(Context& context,
                                const Op& op,
                                std::span<const View> operands,
                                std::span<const View> results) {
  return std::visit(
      [&](const auto& attrs) -> std::int64_t {
        using A = std::decay_t<decltype(attrs)>;
        if constexpr (WorkspaceByView<A>) {
          return workspace_bytes(attrs, context, operands, results);
        } else if constexpr (WorkspaceByType<A>) {
          return workspace_bytes(attrs, context, types_of(operands));
        } else if constexpr (WorkspaceOfAnyBackend<A>) {
          return workspace_bytes(attrs, types_of(operands));
        } else {
          return 0;
        }
      },
      op.attrs());
}

void run_op(Context& context, const Op& op, const Views& views) {
  std::visit(
      [&](const auto& attrs) {
        using A = std::decay_t<decltype(attrs)>;
        if constexpr (ViewOp<A>) {
          fail(ErrorCode::kInternal, "a view op is no instruction");
        } else {
          static_assert(HasKernel<A>, "an op of the list lacks its CPU kernel");
          run(attrs, context, views);
        }
      },
      op.attrs());
}

}  // namespace tessera::cpu
