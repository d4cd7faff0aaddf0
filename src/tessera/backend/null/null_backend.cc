#include "tessera/backend/null/null_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera {
namespace {

class HeapArena final : public HostArena {
 public:
  explicit HeapArena(std::int64_t bytes)
      : size_((static_cast<std::size_t>(bytes) / kAlignment + 1) * kAlignment),
        data_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size_))) {
    TESSERA_REQUIRE(data_ != nullptr, ErrorCode::kOutOfMemory, "cannot allocate {} bytes", bytes);
    std::fill_n(data_, size_, std::byte{0});
  }

  ~HeapArena() override { std::free(data_); }

  HeapArena(const HeapArena&) = delete;
  HeapArena& operator=(const HeapArena&) = delete;

  std::byte* data() override { return data_; }

 private:
  static constexpr std::size_t kAlignment = 4096;  // as Backend::allocate() has it

  std::size_t size_;
  std::byte* data_;
};

class NullBackend final : public Backend {
 public:
  std::string_view name() const override { return "null"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    return std::make_unique<HeapArena>(bytes);
  }

  void draw(const Initial&, const View&) override {}

  std::int64_t workspace_bytes(const Op&, std::span<const View>, std::span<const View>) override {
    return 0;
  }

  void run(const Op&, const Views&, StreamId) override {}

  void synchronize() override {}

  void abort(std::string_view) override {}
};

}  // namespace

std::unique_ptr<Backend> make_null_backend() {
  return std::make_unique<NullBackend>();
}

}  // namespace tessera
