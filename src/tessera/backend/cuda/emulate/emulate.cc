#include "tessera/backend/cuda/emulate/emulate.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <ucontext.h>

#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10U;
// Stacks at equal distances would have their first frames in the same few lines of the caches.
constexpr std::size_t kStackShift = 448;
constexpr std::size_t kStackShifts = 37;

constexpr std::size_t kLanes = 32;
constexpr std::size_t kMaxExchanged = 32;  // bytes of a lane

// Where a fiber stands in its block.
enum class Place { kRunning, kWarpBarrier, kBlockBarrier, kEnd };

// One CUDA thread. It takes part in one block after the other, on the same stack.
struct Fiber {
  // Pages that are never reached take no memory, and no time.
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  std::jmp_buf place = {};  // where it goes on
  bool entered = false;     // its stack is in use
  Place at = Place::kRunning;
  std::size_t num_exchanges = 0;
};

// What lanes gave, by turns in one and the other: who writes one again has read it.
using Exchanged = std::array<std::array<std::byte, kLanes * kMaxExchanged>, 2>;

// A block of threads.
struct Block {
  std::vector<Fiber> fibers;
  std::vector<Exchanged> exchanged;  // by warp
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

// Where this thread's kernels go, if they do not run.
std::vector<std::function<void()>>*& recorded() {
  static thread_local std::vector<std::function<void()>>* calls = nullptr;
  return calls;
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

// Enters the stack of thread `index`, whose first frame run_fiber() is.
void enter(std::jmp_buf& here, Fiber& fiber, std::size_t index, void (*run_fiber)()) {
  ucontext_t context = {};
  ::getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes - index % kStackShifts * kStackShift;
  ::makecontext(&context, run_fiber, 0);
  fiber.entered = true;
  if (_setjmp(here) == 0) {
    ::setcontext(&context);
  }
}

// Lets the others run.
void leave(Place at) {
  Block& block = running_block();
  block.running->at = at;
  change(block.running->place, block.scheduler);
}

[[noreturn]] void run_fiber() {
  while (true) {
    (*running_block().body)();
    leave(Place::kEnd);
  }
}

// Lets thread `index` run to its next barrier or its end.
void resume(std::size_t index) {
  Block& block = running_block();
  Fiber& fiber = block.fibers[index];
  threadIdx.x = static_cast<unsigned>(index);
  block.running = &fiber;
  fiber.at = Place::kRunning;
  if (fiber.entered) {
    change(block.scheduler, fiber.place);
  } else {
    enter(block.scheduler, fiber, index, run_fiber);
  }
}

// Calls visit(index) with [0, count), or from back to front.
template <class Visit>
void in_order(std::size_t count, const Visit& visit) {
  const bool forward = running_block().order == ThreadOrder::kForward;
  for (std::size_t i = 0; i < count; ++i) {
    visit(forward ? i : count - 1 - i);
  }
}

// Runs the lanes of a warp until none of them waits for its warp alone.
void run_warp(const char* name, std::size_t warp, std::size_t threads) {
  const Block& block = running_block();
  const std::size_t first = warp * kLanes;
  const std::size_t lanes = std::min(threads - first, kLanes);
  std::size_t waiting = 0;
  do {
    in_order(lanes, [&](std::size_t lane) { resume(first + lane); });
    const auto fibers = std::span(block.fibers).subspan(first, lanes);
    waiting = static_cast<std::size_t>(std::ranges::count(fibers, Place::kWarpBarrier, &Fiber::at));
    TESSERA_CHECK(waiting == 0 || waiting == lanes,
                  "kernel {}: {} of {} lanes do not come to an exchange of their warp",
                  name,
                  lanes - waiting,
                  lanes);
  } while (waiting > 0);
}

// Runs all threads from one barrier of the block to the next; returns how many have ended.
std::size_t run_to_barrier(const char* name, std::size_t threads) {
  Block& block = running_block();
  in_order(block.exchanged.size(), [&](std::size_t warp) { run_warp(name, warp, threads); });
  return static_cast<std::size_t>(
      std::ranges::count(std::span(block.fibers).first(threads), Place::kEnd, &Fiber::at));
}

}  // namespace

void __syncthreads() {
  leave(Place::kBlockBarrier);
}

const std::byte* exchange_bytes(const void* own, std::size_t bytes) {
  TESSERA_CHECK(bytes <= kMaxExchanged, "{} bytes of a lane", bytes);
  Block& block = running_block();
  const std::size_t warp = threadIdx.x / kLanes;
  auto& place = block.exchanged[warp][block.running->num_exchanges++ % 2];
  std::memcpy(&place[threadIdx.x % kLanes * bytes], own, bytes);
  leave(Place::kWarpBarrier);
  return place.data();
}

void set_thread_order(ThreadOrder order) {
  running_block().order = order;
}

void record_into(std::vector<std::function<void()>>* calls) {
  recorded() = calls;
}

bool was_recorded(const std::function<void()>& call) {
  if (recorded() != nullptr) {
    recorded()->push_back(call);
  }
  return recorded() != nullptr;
}

void emulate(const char* name,
             std::int64_t blocks,
             int threads,
             const std::function<void()>& body) {
  if (was_recorded([=] { emulate(name, blocks, threads, body); })) {
    return;
  }
  const std::scoped_lock lock(turn());
  const auto num_threads = static_cast<std::size_t>(threads);
  Block& block = running_block();
  block.fibers.resize(std::max(block.fibers.size(), num_threads));
  block.exchanged.resize((num_threads + kLanes - 1) / kLanes);
  block.body = &body;
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = static_cast<unsigned>(blocks);
  for (std::int64_t i = 0; i < blocks; ++i) {
    blockIdx.x = static_cast<unsigned>(i);
    for (Fiber& fiber : std::span(block.fibers).first(num_threads)) {
      fiber.num_exchanges = 0;
    }
    std::size_t ended = 0;
    while (ended < num_threads) {
      try {
        ended = run_to_barrier(name, num_threads);
      } catch (...) {
        block.fibers.clear();  // some stand in the middle of `body`
        throw;
      }
      if (ended > 0 && ended < num_threads) {
        block.fibers.clear();
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
