#pragma once

// For the ops' files about CUDA: how a kernel's workspace is cut.

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::cuda {

inline constexpr std::int64_t kWorkspaceAlignment = 256;

// What is left of a workspace from its first aligned byte on; it loses less than
// kWorkspaceAlignment.
inline std::span<std::byte> aligned_workspace(std::span<std::byte> workspace) {
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data());
  return workspace.subspan((kWorkspaceAlignment - begin % kWorkspaceAlignment) %
                           kWorkspaceAlignment);
}

// Parts of a workspace, one behind the other, each aligned as the first.
class Parts {
 public:
  explicit Parts(std::byte* data) : data_(data) {}

  template <class T>
  T* take(std::int64_t count) {
    auto* const part = reinterpret_cast<T*>(data_ + size_);
    size_ += (count * std::int64_t{sizeof(T)} + kWorkspaceAlignment - 1) / kWorkspaceAlignment *
             kWorkspaceAlignment;
    return part;
  }

  std::int64_t size() const { return size_; }

 private:
  std::byte* data_;
  std::int64_t size_ = 0;
};

}  // namespace tessera::cuda
