#include "tessera/backend/cuda/emulate/emulate.h"

#include <csetjmp>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include <ucontext.h>

#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10U;

// One CUDA thread. It takes part in one block after the other, on the same stack.
struct Fiber {
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  std::jmp_buf place = {};  // where it stands while another one runs
  bool entered = false;     // its stack is in use
  bool ended = false;       // in this block
};

// A block of threads.
struct Block {
  std::vector<Fiber> fibers;
  std::jmp_buf scheduler = {};
  Fiber* running = nullptr;
  const std::function<void()>* body = nullptr;
  ThreadOrder order = ThreadOrder::kForward;
};

// The block that runs on this thread.
Block& running_block() {
  static thread_local Block block;
  return block;
}

// Held by the thread whose kernel runs: what kernels share has one place in the process.
std::mutex& turn() {
  static std::mutex mutex;
  return mutex;
}

// Goes on at `there` and comes back when somebody goes on at `here`: a swapcontext() without its
// two system calls, as barriers are passed millions of times. No frame is left for good.
void change(std::jmp_buf& here, std::jmp_buf& there) {
  if (_setjmp(here) == 0) {
    _longjmp(there, 1);
  }
}

// Enters the stack of `fiber`, whose first frame run_fiber() is.
void enter(std::jmp_buf& here, Fiber& fiber, void (*run_fiber)()) {
  ucontext_t context = {};
  ::getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  ::makecontext(&context, run_fiber, 0);
  fiber.entered = true;
  if (_setjmp(here) == 0) {
    ::setcontext(&context);
  }
}

// Lets the others run.
void leave() {
  Block& block = running_block();
  change(block.running->place, block.scheduler);
}

[[noreturn]] void run_fiber() {
  while (true) {
    (*running_block().body)();
    running_block().running->ended = true;
    leave();
  }
}

// Lets thread `index` run to its next barrier or its end.
void resume(std::size_t index) {
  Block& block = running_block();
  Fiber& fiber = block.fibers[index];
  threadIdx.x = static_cast<unsigned>(index);
  block.running = &fiber;
  if (fiber.entered) {
    change(block.scheduler, fiber.place);
  } else {
    enter(block.scheduler, fiber, run_fiber);
  }
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
  leave();
}

void set_thread_order(ThreadOrder order) {
  running_block().order = order;
}

void emulate(const char* name,
             std::int64_t blocks,
             int threads,
             const std::function<void()>& body) {
  const std::scoped_lock lock(turn());
  const auto num_threads = static_cast<std::size_t>(threads);
  Block& block = running_block();
  block.fibers.resize(num_threads);
  block.body = &body;
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = static_cast<unsigned>(blocks);
  for (std::int64_t i = 0; i < blocks; ++i) {
    blockIdx.x = static_cast<unsigned>(i);
    for (Fiber& fiber : block.fibers) {
      fiber.ended = false;
    }
    std::size_t ended = 0;
    while (ended < num_threads) {
      ended = run_to_barrier(num_threads);
      if (ended > 0 && ended < num_threads) {
        block.fibers.clear();  // some stand in the middle of `body`
        fail(ErrorCode::kInternal,
             "kernel {}: {} of {} threads end before a barrier that others wait at",
             name,
             ended,
             num_threads);
      }
    }
  }
}

}  // namespace tessera::cuda
