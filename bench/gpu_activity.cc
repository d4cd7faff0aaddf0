#include "bench/gpu_activity.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#include <cupti.h>
#include <dlfcn.h>

#include "tessera/base/format.h"

namespace tessera {
namespace {

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// What CUPTI's callbacks, which have no argument for it, share with us.
struct Records {
  std::mutex mutex;
  std::vector<Interval> intervals;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
};

Records& records() {
  static Records shared;
  return shared;
}

constexpr std::size_t kBufferBytes = std::size_t{8} << 20U;
constexpr std::size_t kBufferAlignment = 64;

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = kBufferBytes;
  *max_records = 0;
}

template <class Record>
Interval interval_of(const CUpti_Activity* record) {
  const auto* const typed = reinterpret_cast<const Record*>(record);
  return {.begin = typed->start, .end = typed->end};
}

void take_buffer(CUcontext /*context*/,
                 std::uint32_t /*stream*/,
                 std::uint8_t* buffer,
                 std::size_t /*size*/,
                 std::size_t valid) {
  Records& shared = records();
  {
    const std::scoped_lock lock(shared.mutex);
    CUpti_Activity* record = nullptr;
    while (shared.next(buffer, valid, &record) == CUPTI_SUCCESS) {
      if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        shared.intervals.push_back(interval_of<CUpti_ActivityKernel10>(record));
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        shared.intervals.push_back(interval_of<CUpti_ActivityMemcpy6>(record));
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        shared.intervals.push_back(interval_of<CUpti_ActivityMemset4>(record));
      }
    }
  }
  std::free(buffer);
}

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

GpuActivity::GpuActivity() {
  void* const library = ::dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    problem_ = ::dlerror();
    return;
  }
  Records& shared = records();
  shared.next = find<decltype(cuptiActivityGetNextRecord)>(library, "cuptiActivityGetNextRecord");
  shared.flush = find<decltype(cuptiActivityFlushAll)>(library, "cuptiActivityFlushAll");
  auto* const callbacks =
      find<decltype(cuptiActivityRegisterCallbacks)>(library, "cuptiActivityRegisterCallbacks");
  auto* const enable = find<decltype(cuptiActivityEnable)>(library, "cuptiActivityEnable");
  CUptiResult result = callbacks(give_buffer, take_buffer);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET}) {
    result = result == CUPTI_SUCCESS ? enable(kind) : result;
  }
  if (result != CUPTI_SUCCESS) {
    problem_ = format("CUPTI refuses to record, with error {}", static_cast<int>(result));
  }
}

std::optional<double> GpuActivity::idle_share() {
  Records& shared = records();
  if (!problem_.empty() || shared.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != CUPTI_SUCCESS) {
    return std::nullopt;
  }
  const std::scoped_lock lock(shared.mutex);
  std::vector<Interval>& intervals = shared.intervals;
  if (intervals.empty()) {
    return std::nullopt;
  }
  std::ranges::sort(intervals, {}, &Interval::begin);
  std::uint64_t busy = 0;
  std::uint64_t until = intervals.front().begin;
  for (const Interval& each : intervals) {
    busy += std::max(each.end, until) - std::max(each.begin, until);
    until = std::max(until, each.end);
  }
  return 1 - static_cast<double>(busy) / static_cast<double>(until - intervals.front().begin);
}

}  // namespace tessera
