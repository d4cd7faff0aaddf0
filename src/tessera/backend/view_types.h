#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <utility>

#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"

namespace tessera {

// What ops ask workspaces for: the types of views, with dims of no name.
inline TensorTypes types_of(std::span<const View> views) {
  TensorTypes types;
  for (const View& view : views) {
    TensorType type{.dtype = view.dtype, .dims = {}};
    for (std::int32_t i = 0; i < view.num_dims; ++i) {
      type.dims.push_back({.name = "d", .bound = view.sizes[static_cast<std::size_t>(i)]});
    }
    types.push_back(std::move(type));
  }
  return types;
}

// Workspace that depends on shapes alone, whatever the backend.
template <class A>
concept WorkspaceOfAnyBackend = requires(const A& attrs, Types types) {
  { workspace_bytes(attrs, types) } -> std::same_as<std::int64_t>;
};

}  // namespace tessera
