#include "tessera/checkpoint/file_digest.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

#include <xxhash.h>

#include "tessera/base/format.h"

namespace tessera {
namespace {

std::string to_hex(XXH128_hash_t hash) {
  return format("{:016x}{:016x}", hash.high64, hash.low64);
}

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

struct DigestBuilder::State {
  std::unique_ptr<XXH3_state_t, FreeState> xxh3{XXH3_createState()};
  std::int64_t size_bytes = 0;
};

FileDigest digest(std::span<const std::byte> bytes) {
  return {.size_bytes = static_cast<std::int64_t>(bytes.size()),
          .xxh3_128 = to_hex(XXH3_128bits(bytes.data(), bytes.size()))};
}

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) {
  if (!state_->xxh3) {
    throw std::bad_alloc();
  }
  XXH3_128bits_reset(state_->xxh3.get());
}

DigestBuilder::~DigestBuilder() = default;

void DigestBuilder::append(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh3.get(), bytes.data(), bytes.size());
  state_->size_bytes += static_cast<std::int64_t>(bytes.size());
}

FileDigest DigestBuilder::digest() const {
  return {.size_bytes = state_->size_bytes,
          .xxh3_128 = to_hex(XXH3_128bits_digest(state_->xxh3.get()))};
}

}  // namespace tessera
