#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/backend/device_backend.h"

struct CUevent_st;  // of the CUDA runtime, where cudaEvent_t is a pointer to it

namespace tessera {

// How long all runs of a kernel took.
struct KernelTime {
  std::string name;  // as its source has it, without parameters
  std::int64_t count = 0;
  double seconds = 0;
};

// How long the GPU was idle, by CUPTI's records of kernels, copies and fills of this process.
// CUPTI, which is not everywhere, is loaded at run time.
class GpuActivity {
 public:
  // Begins to record. One a process, made before anything else of it uses the GPU: of graphs that
  // exist already CUPTI does not see the kernels. Where it cannot, problem() says why.
  GpuActivity();

  // Why there is no figure; empty where there is one.
  const std::string& problem() const { return problem_; }

  // Forgets what was recorded so far. No work may be under way on the device.
  void restart();

  // The share of the time from the first record's begin to the last one's end in which none was at
  // work: 1 minus the union of their intervals. Nothing, and a problem(), where there are fewer
  // records than `least`: some are missing then.
  std::optional<double> idle_share(std::int64_t least);

  // The sum of the intervals of Tessera's own kernels. Nothing, and a problem(), where there is
  // none.
  std::optional<double> own_kernel_seconds();

  // What was recorded, by the kernel's name, copies and fills each as one; the longest first.
  std::vector<KernelTime> kernel_times();

 private:
  bool flush();

  // The same, and that none was lost.
  bool take();

  std::string problem_;
};

// A device's backend that also notes, by events on its first stream, where each span of work begins
// and ends: a step's, from its first op to its last one, or an op's, for which nothing is recorded,
// so that each op is begun by itself. An estimate: what lies between an op's kernels counts as
// work, and its events as idle.
class TimedWork final : public Backend {
 public:
  enum class Span : std::uint8_t { kStep, kOp };

  // Borrows the backend. It notes nothing before start().
  TimedWork(DeviceBackend& backend, Span span) : backend_(backend), span_(span) {}

  ~TimedWork() override;

  void start() { is_on_ = true; }

  // The share of the time from the begin of the first noted span to the end of the last one that
  // lies between a span's end and the next one's begin. Errors: kDeviceError; kInvalidArgument
  // where fewer than two were noted.
  double idle_between() const;

  std::string_view name() const override { return backend_.name(); }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return backend_.allocate(bytes); }

  void draw(const Initial& initial, const View& out) override { backend_.draw(initial, out); }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return backend_.workspace_bytes(op, operands, results);
  }

  void run(const Op& op, const Views& views, StreamId stream) override;

  bool orders_streams() const override { return backend_.orders_streams(); }

  World* world() override { return backend_.world(); }

  Channel* channel(const Op& op) override { return backend_.channel(op); }

  void make_channels(std::span<const PlacedTransfer> transfers) override {
    backend_.make_channels(transfers);
  }

  void hand_over() override { backend_.hand_over(); }

  void signal(std::size_t number, StreamId stream) override { backend_.signal(number, stream); }

  void wait(std::size_t number, StreamId stream) override { backend_.wait(number, stream); }

  bool records(const Op& op, std::span<const TensorType> operands) const override {
    return span_ == Span::kStep && backend_.records(op, operands);
  }

  std::unique_ptr<Recording> record(const std::function<void()>& runs) override;

  void synchronize() override;

  void abort(std::string_view reason) override { backend_.abort(reason); }

 private:
  class Replayed;

  bool is_within_span() const { return events_.size() % 2 == 1; }

  void begin();
  void end();
  void mark();

  DeviceBackend& backend_;
  Span span_;
  bool is_on_ = false;
  bool is_recording_ = false;        // ops, which then do not run
  std::vector<CUevent_st*> events_;  // of each span its begin and its end
};

}  // namespace tessera
