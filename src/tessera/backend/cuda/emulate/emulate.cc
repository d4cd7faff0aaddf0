#include "tessera/backend/cuda/emulate/emulate.h"

#include <cstddef>
#include <memory>
#include <vector>

#include <ucontext.h>

#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10U;

// One CUDA thread. `context` is where it stands while another one runs.
struct Fiber {
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  ucontext_t context = {};
  bool started = false;
  bool ended = false;
};

// A block of threads.
struct Block {
  std::vector<Fiber> fibers;
  ucontext_t scheduler = {};
  Fiber* running = nullptr;
  const std::function<void()>* body = nullptr;
  ThreadOrder order = ThreadOrder::kForward;
};

// The block that runs. There is one at a time.
Block& running_block() {
  static Block block;
  return block;
}

void run_fiber() {
  Block& block = running_block();
  (*block.body)();
  block.running->ended = true;
}

// Lets thread `index` run to its next barrier or its end.
void resume(std::size_t index) {
  Block& block = running_block();
  Fiber& fiber = block.fibers[index];
  threadIdx.x = static_cast<unsigned>(index);
  block.running = &fiber;
  if (!fiber.started) {
    fiber.started = true;
    ::getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &block.scheduler;
    ::makecontext(&fiber.context, run_fiber, 0);
  }
  ::swapcontext(&block.scheduler, &fiber.context);
}

// Runs all threads from one barrier to the next; returns how many have ended.
std::size_t run_to_barrier(std::size_t threads) {
  const Block& block = running_block();
  std::size_t ended = 0;
  for (std::size_t i = 0; i < threads; ++i) {
    const std::size_t index = block.order == ThreadOrder::kForward ? i : threads - 1 - i;
    resume(index);
    ended += block.fibers[index].ended ? 1 : 0;
  }
  return ended;
}

}  // namespace

void __syncthreads() {
  Block& block = running_block();
  ::swapcontext(&block.running->context, &block.scheduler);
}

void set_thread_order(ThreadOrder order) {
  running_block().order = order;
}

void emulate(const char* name,
             std::int64_t blocks,
             int threads,
             const std::function<void()>& body) {
  const auto num_threads = static_cast<std::size_t>(threads);
  Block& block = running_block();
  block.fibers.resize(num_threads);
  block.body = &body;
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = static_cast<unsigned>(blocks);
  for (std::int64_t i = 0; i < blocks; ++i) {
    blockIdx.x = static_cast<unsigned>(i);
    for (Fiber& fiber : block.fibers) {
      fiber.started = false;
      fiber.ended = false;
    }
    std::size_t ended = 0;
    while (ended < num_threads) {
      ended = run_to_barrier(num_threads);
      TESSERA_CHECK(ended == 0 || ended == num_threads,
                    "kernel {}: {} of {} threads end before a barrier that others wait at",
                    name,
                    ended,
                    num_threads);
    }
  }
}

}  // namespace tessera::cuda
