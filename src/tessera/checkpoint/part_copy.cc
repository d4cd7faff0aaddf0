#include "tessera/checkpoint/part_copy.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tessera/base/stream_copy.h"
#include "tessera/base/threads.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera {
namespace {

std::size_t align(std::size_t bytes) {
  return (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

// What one thread copies at a time.
constexpr std::size_t kCopyBytes = std::size_t{4} << 20U;

struct Copy {
  std::span<const std::byte> from;
  std::byte* to;
};

void run(std::span<const Copy> copies, int threads) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < copies.size(); i = next++) {
      stream_copy(copies[i].to, copies[i].from);
    }
  };
  std::vector<std::jthread> others;
  const auto helpers = std::min(static_cast<std::size_t>(threads), copies.size());
  for (std::size_t i = 1; i < helpers && start_thread(others, work); ++i) {
  }
  work();
}

}  // namespace

// Each file's data begin at a multiple of the alignment, as they do in the file.
std::size_t part_copy_bytes(std::span<const CheckpointTensor> tensors,
                            std::int64_t max_file_bytes) {
  std::size_t bytes = 0;
  for (const bool of_model : {true, false}) {
    for (const auto& file : split_into_files(tensors, of_model, max_file_bytes)) {
      bytes = align(bytes);
      for (const CheckpointTensor* tensor : file) {
        bytes += saved_bytes(*tensor);
      }
    }
  }
  return PageBuffer::rounded(bytes);
}

void PartCopy::reserve(std::size_t bytes) {
  if (memory_.bytes().size() < bytes) {
    memory_ = PageBuffer();  // gone before the larger one comes
    memory_ = PageBuffer(bytes);
    memory_.populate();
  }
}

void PartCopy::take(std::span<PartFile> files, int threads) {
  std::vector<Copy> copies;
  std::size_t at = 0;
  for (PartFile& file : files) {
    at = align(at);
    for (SafetensorsTensor& tensor : file.tensors) {
      const std::span<std::byte> to = memory_.bytes().subspan(at, tensor.data.size());
      at += to.size();
      for (std::size_t done = 0; done < to.size(); done += kCopyBytes) {
        const std::size_t count = std::min(kCopyBytes, to.size() - done);
        copies.push_back({.from = tensor.data.subspan(done, count), .to = to.data() + done});
      }
      tensor.data = to;
      tensor.source.reset();
    }
  }
  run(copies, threads);
}

}  // namespace tessera
