#include "bench/gpu_activity.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <type_traits>
#include <utility>

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cuda_runtime_api.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const char* name = nullptr;  // of a kernel, mangled; of a copy or fill what it is

  // Of one of our kernels.
  bool is_own() const { return std::string_view(name).find("7tessera") != std::string_view::npos; }
};

// CUPTI's functions that are used, and what its callbacks, which have no argument for it, share
// with us.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) set_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) num_dropped = nullptr;
  decltype(&cuptiGetResultString) text = nullptr;

  std::mutex mutex = {};
  std::vector<Interval> intervals = {};
  std::size_t lost = 0;
};

Cupti& cupti() {
  static Cupti shared;
  return shared;
}

constexpr std::size_t kBufferBytes = std::size_t{8} << 20U;
constexpr std::size_t kBufferAlignment = 64;

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = kBufferBytes;
  *max_records = 0;
}

// A name that outlives the record.
const char* kept_name(const char* name) {
  static std::set<std::string> names;
  return names.insert(name == nullptr ? "a kernel without a name" : name).first->c_str();
}

template <class Record>
Interval interval_of(const CUpti_Activity* record, const char* name) {
  const auto* const typed = reinterpret_cast<const Record*>(record);
  return {.begin = typed->start, .end = typed->end, .name = name};
}

Interval interval_of(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const char* const name = reinterpret_cast<const CUpti_ActivityKernel10*>(record)->name;
    return interval_of<CUpti_ActivityKernel10>(record, kept_name(name));
  }
  if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    return interval_of<CUpti_ActivityMemcpy6>(record, "copies");
  }
  if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    return interval_of<CUpti_ActivityMemset4>(record, "fills");
  }
  return {};
}

// The name that the compiler made of a function, as its source has it, without its parameters.
std::string source_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : mangled;
  const std::string unnamed = "(anonymous namespace)::";
  for (std::size_t at = name.find(unnamed); at != std::string::npos; at = name.find(unnamed)) {
    name.erase(at, unnamed.size());
  }
  int depth = 0;  // of template arguments, which may hold casts
  const auto end = std::ranges::find_if(name, [&](char c) {
    depth += c == '<' ? 1 : c == '>' ? -1 : 0;
    return c == '(' && depth == 0;
  });
  name.erase(end, name.end());
  return name;
}

void take_buffer(CUcontext context,
                 std::uint32_t stream,
                 std::uint8_t* buffer,
                 std::size_t /*size*/,
                 std::size_t valid) {
  Cupti& shared = cupti();
  {
    const std::scoped_lock lock(shared.mutex);
    CUpti_Activity* record = nullptr;
    while (shared.next(buffer, valid, &record) == CUPTI_SUCCESS) {
      // Without times it is of another kind, or CUPTI could not take them.
      if (const Interval interval = interval_of(record); interval.end > interval.begin) {
        shared.intervals.push_back(interval);
      }
    }
    std::size_t dropped = 0;
    if (shared.num_dropped(context, stream, &dropped) == CUPTI_SUCCESS) {
      shared.lost += dropped;
    }
  }
  std::free(buffer);
}

std::string text_of(CUptiResult result) {
  const char* text = nullptr;
  return cupti().text(result, &text) == CUPTI_SUCCESS && text != nullptr
             ? text
             : format("error {}", static_cast<int>(result));
}

// Finds CUPTI's functions. Returns what is missing, or nothing.
std::string load() {
  void* const library = ::dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = ::dlerror();
    return format("CUPTI is not there: {}", error == nullptr ? "no libcupti.so.13" : error);
  }
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) {
      missing = format("CUPTI has no {}()", name);
    }
  };
  Cupti& shared = cupti();
  find(shared.set_callbacks, "cuptiActivityRegisterCallbacks");
  find(shared.enable, "cuptiActivityEnable");
  find(shared.flush, "cuptiActivityFlushAll");
  find(shared.next, "cuptiActivityGetNextRecord");
  find(shared.num_dropped, "cuptiActivityGetNumDroppedRecords");
  find(shared.text, "cuptiGetResultString");
  return missing;
}

void check(cudaError_t result, const char* call) {
  TESSERA_REQUIRE(result == cudaSuccess,
                  ErrorCode::kDeviceError,
                  "{}: {} ({})",
                  call,
                  cudaGetErrorName(result),
                  cudaGetErrorString(result));
}

double milliseconds_between(cudaEvent_t first, cudaEvent_t then) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, first, then), "cudaEventElapsedTime()");
  return static_cast<double>(milliseconds);
}

}  // namespace

GpuActivity::GpuActivity() : problem_(load()) {
  if (!problem_.empty()) {
    return;
  }
  CUptiResult result = cupti().set_callbacks(give_buffer, take_buffer);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET}) {
    result = result == CUPTI_SUCCESS ? cupti().enable(kind) : result;
  }
  if (result != CUPTI_SUCCESS) {
    problem_ = format("CUPTI refuses to record: {}", text_of(result));
  }
}

// Whether all that was recorded is in our hands.
bool GpuActivity::flush() {
  if (problem_.empty()) {
    const CUptiResult result = cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    if (result != CUPTI_SUCCESS) {
      problem_ = format("CUPTI does not hand over its records: {}", text_of(result));
    }
  }
  return problem_.empty();
}

void GpuActivity::restart() {
  if (flush()) {
    const std::scoped_lock lock(cupti().mutex);
    cupti().intervals.clear();
    cupti().lost = 0;
  }
}

bool GpuActivity::take() {
  if (flush()) {
    const std::scoped_lock lock(cupti().mutex);
    if (cupti().intervals.empty()) {
      problem_ = "CUPTI recorded nothing";
    } else if (cupti().lost > 0) {
      problem_ = format("CUPTI lost {} records", cupti().lost);
    }
  }
  return problem_.empty();
}

std::optional<double> GpuActivity::own_kernel_seconds() {
  if (!take()) {
    return std::nullopt;
  }
  const std::scoped_lock lock(cupti().mutex);
  double nanoseconds = 0;
  for (const Interval& each : cupti().intervals) {
    nanoseconds += each.is_own() ? static_cast<double>(each.end - each.begin) : 0.0;
  }
  if (nanoseconds == 0) {
    problem_ = "CUPTI recorded none of our kernels";
    return std::nullopt;
  }
  return nanoseconds * 1e-9;
}

std::vector<KernelTime> GpuActivity::kernel_times() {
  std::map<std::string, KernelTime> by_name;
  if (take()) {
    const std::scoped_lock lock(cupti().mutex);
    for (const Interval& each : cupti().intervals) {
      KernelTime& time = by_name[each.name];
      time.count += 1;
      time.seconds += static_cast<double>(each.end - each.begin) * 1e-9;
    }
  }
  std::vector<KernelTime> times;
  for (auto& [name, time] : by_name) {
    time.name = source_name(name.c_str());
    times.push_back(std::move(time));
  }
  std::ranges::sort(times, std::greater(), &KernelTime::seconds);
  return times;
}

std::optional<double> GpuActivity::idle_share(std::int64_t least) {
  if (!take()) {
    return std::nullopt;
  }
  const std::scoped_lock lock(cupti().mutex);
  std::vector<Interval>& intervals = cupti().intervals;
  if (std::cmp_less(intervals.size(), least)) {
    problem_ =
        format("CUPTI's records are incomplete: {}, expected at least {}", intervals.size(), least);
  }
  if (!problem_.empty()) {
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

class TimedWork::Replayed final : public Recording {
 public:
  Replayed(TimedWork& work, std::unique_ptr<Recording> recording)
      : work_(work), recording_(std::move(recording)) {}

  void replay() override {
    work_.begin();
    recording_->replay();
  }

 private:
  TimedWork& work_;
  std::unique_ptr<Recording> recording_;
};

TimedWork::~TimedWork() {
  for (CUevent_st* const event : events_) {
    cudaEventDestroy(event);
  }
}

void TimedWork::mark() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate()");
  events_.push_back(event);
  check(cudaEventRecord(event, backend_.native_stream(StreamId{0})), "cudaEventRecord()");
}

void TimedWork::begin() {
  if (is_on_ && !is_recording_ && !is_within_span()) {
    mark();
  }
}

void TimedWork::end() {
  if (is_within_span()) {
    mark();
  }
}

void TimedWork::run(const Op& op, const Views& views, StreamId stream) {
  begin();
  backend_.run(op, views, stream);
  if (span_ == Span::kOp) {
    end();
  }
}

std::unique_ptr<Recording> TimedWork::record(const std::function<void()>& runs) {
  is_recording_ = true;
  std::unique_ptr<Recording> recording = backend_.record(runs);
  is_recording_ = false;
  return std::make_unique<Replayed>(*this, std::move(recording));
}

void TimedWork::synchronize() {
  end();
  backend_.synchronize();
}

double TimedWork::idle_between() const {
  TESSERA_REQUIRE(events_.size() >= 4 && events_.size() % 2 == 0,
                  ErrorCode::kInvalidArgument,
                  "{} events, expected two of each of two spans or more",
                  events_.size());
  double idle = 0;
  for (std::size_t i = 1; i + 1 < events_.size(); i += 2) {
    idle += milliseconds_between(events_[i], events_[i + 1]);
  }
  return idle / milliseconds_between(events_.front(), events_.back());
}

}  // namespace tessera
