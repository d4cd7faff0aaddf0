#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "tessera/backend/cpu/context.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/attention_blocks.h"
#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/attention/attention_tasks.h"

namespace tessera {

namespace cpu {

namespace {

ForwardScratch cut_forward_scratch(const AttentionShape& shape, ScratchCutter& cutter) {
  const std::int64_t d = shape.padded_dim();
  const std::int64_t lanes = shape.chunk_lanes();
  return {.rows = cutter.take<float>(kBlockKeys * d),
          .queries = cutter.take<float>(lanes * d),
          .outputs = cutter.take<float>(lanes * d),
          .maximum = cutter.take<float>(lanes),
          .sum = cutter.take<float>(lanes),
          .positions = cutter.take<std::int32_t>(lanes),
          .documents = cutter.take<std::int32_t>(lanes),
          .keys = cutter.take<float>(kBlockKeys * d),
          .values = cutter.take<float>(kBlockKeys * d),
          .scores = cutter.take<float>(kBlockKeys * kPairLanes)};
}

DecodeScratch cut_decode_scratch(const AttentionShape& shape, ScratchCutter& cutter) {
  const std::int64_t keys = shape.blocks() * kBlockKeys;
  return {.keys = keys,
          .scores = cutter.take<float>(shape.group() * keys),
          .sums = cutter.take<float>(shape.group()),
          .outputs = cutter.take<float>(shape.group() * shape.padded_dim())};
}

BackwardScratch cut_backward_scratch(const AttentionShape& shape,
                                     std::int64_t range_blocks,
                                     ScratchCutter& cutter) {
  const std::int64_t d = shape.padded_dim();
  const std::int64_t lanes = shape.chunk_lanes();
  return {.rows = cutter.take<float>(kBlockKeys * d),
          .lanes = {.queries = cutter.take<float>(lanes * d),
                    .queries_t = cutter.take<float>(lanes * d),
                    .dout = cutter.take<float>(lanes * d),
                    .dout_t = cutter.take<float>(lanes * d),
                    .dq_t = cutter.take<float>(lanes * d),
                    .lse = cutter.take<float>(lanes),
                    .delta = cutter.take<float>(lanes),
                    .positions = cutter.take<std::int32_t>(lanes),
                    .documents = cutter.take<std::int32_t>(lanes)},
          .keys = {.keys = cutter.take<float>(kBlockKeys * d),
                   .keys_t = cutter.take<float>(kBlockKeys * d),
                   .values_t = cutter.take<float>(kBlockKeys * d)},
          .scores = {.p = cutter.take<float>(kBlockKeys * kGroupLanes),
                     .ds = cutter.take<float>(kBlockKeys * kGroupLanes)},
          .sums = {.dk = cutter.take<float>(range_blocks * kBlockKeys * d),
                   .dv = cutter.take<float>(range_blocks * kBlockKeys * d)}};
}

std::int64_t forward_scratch_bytes(const AttentionShape& shape) {
  ScratchCutter counter(nullptr);
  if (shape.queries == 1) {
    cut_decode_scratch(shape, counter);
  } else {
    cut_forward_scratch(shape, counter);
  }
  return counter.used_bytes();
}

std::int64_t backward_scratch_bytes(const AttentionShape& shape, std::int64_t range_blocks) {
  ScratchCutter counter(nullptr);
  cut_backward_scratch(shape, range_blocks, counter);
  return counter.used_bytes();
}

LaneRange lanes_of_head(const AttentionShape& shape, std::int64_t head) {
  return {.batch = head / shape.kv_heads,
          .head = head % shape.kv_heads,
          .group = shape.group(),
          .first = 0,
          .last = shape.lanes()};
}

// The lanes of every key/value head, in tasks of some pairs: head by head, so that a head's keys
// stay in the caches, and the last lanes first, which see most keys if attention is causal.
class LaneTasks {
 public:
  LaneTasks(const AttentionShape& shape, int threads)
      : shape_(shape), task_lanes_(shape.chunk_lanes()) {
    // Some tasks a thread, where there are enough lanes.
    while (size() < std::int64_t{4} * threads && task_lanes_ > kGroupLanes) {
      task_lanes_ /= 2;
    }
  }

  std::int64_t size() const { return shape_.batch * shape_.kv_heads * tasks_of_head(); }

  LaneRange operator[](std::int64_t task) const {
    LaneRange lanes = lanes_of_head(shape_, task / tasks_of_head());
    lanes.first = (tasks_of_head() - 1 - task % tasks_of_head()) * task_lanes_;
    lanes.last = std::min(lanes.first + task_lanes_, shape_.lanes());
    return lanes;
  }

 private:
  std::int64_t tasks_of_head() const { return ceil_div(shape_.lanes(), task_lanes_); }

  const AttentionShape& shape_;
  std::int64_t task_lanes_;
};

// Every key/value head as one task.
class HeadTasks {
 public:
  explicit HeadTasks(const AttentionShape& shape) : shape_(shape) {}

  std::int64_t size() const { return shape_.batch * shape_.kv_heads; }

  LaneRange operator[](std::int64_t task) const { return lanes_of_head(shape_, task); }

 private:
  const AttentionShape& shape_;
};

// Whole key/value heads where these keep the threads busy. Else ranges of keys of a head, which
// give dk and dv, and then ranges of lanes, which give dq: 7 products in place of 5. Both give the
// same bits.
class BackwardTasks {
 public:
  BackwardTasks(const AttentionShape& shape, int threads)
      : shape_(shape), heads_(shape.batch * shape.kv_heads), lane_tasks_(shape, threads) {
    const std::int64_t rounds = ceil_div(heads_, threads);
    whole_heads_ = 7 * heads_ >= 5 * rounds * threads;
    range_blocks_ = whole_heads_ ? std::max<std::int64_t>(shape.blocks(), 1) : kRangeBlocks;
  }

  std::int64_t size() const {
    return heads_ * ranges_of_head() + (whole_heads_ ? 0 : lane_tasks_.size());
  }

  // Blocks of keys whose dk and dv are summed at a time.
  std::int64_t range_blocks() const { return range_blocks_; }

  BackwardTask operator[](std::int64_t task) const {
    const std::int64_t range_tasks = heads_ * ranges_of_head();
    if (task >= range_tasks) {
      return {.lanes = lane_tasks_[task - range_tasks],
              .blocks = {.first = 0, .last = shape_.blocks()},
              .dq = true,
              .dkv = false};
    }
    const std::int64_t first = task % ranges_of_head() * range_blocks_;
    return {.lanes = lanes_of_head(shape_, task / ranges_of_head()),
            .blocks = {.first = first, .last = std::min(first + range_blocks_, shape_.blocks())},
            .dq = whole_heads_,
            .dkv = true};
  }

 private:
  static constexpr std::int64_t kRangeBlocks = 4;

  std::int64_t ranges_of_head() const {
    return whole_heads_ ? 1 : ceil_div(shape_.blocks(), range_blocks_);
  }

  const AttentionShape& shape_;
  std::int64_t heads_;
  LaneTasks lane_tasks_;
  bool whole_heads_ = true;
  std::int64_t range_blocks_ = 0;
};

// Calls body(task, memory) for every task, with scratch memory of the calling thread.
template <class Tasks, class Body>
void for_each_task(ThreadTeam& team,
                   const Tasks& tasks,
                   std::byte* scratch,
                   std::int64_t scratch_bytes,
                   const Body& body) {
  team.run(tasks.size(), [&](std::int64_t task, int member) {
    body(tasks[task], scratch + member * scratch_bytes);
  });
}

}  // namespace

}  // namespace cpu

std::int64_t workspace_bytes(const AttentionAttrs& /*attrs*/, cpu::Context& context, Types in) {
  const cpu::AttentionShape shape = cpu::attention_shape(in[0], in[1]);
  return cpu::mask_bounds_bytes(shape) + context.threads() * cpu::forward_scratch_bytes(shape);
}

void run(const AttentionAttrs& attrs, cpu::Context& context, const Views& views) {
  const AttentionOperands of = by_name(attrs, views);
  const cpu::AttentionShape shape = cpu::attention_shape(of.q, of.k);
  const cpu::Mask mask = cpu::attention_mask(of.ids, attrs.causal, attrs.window);
  const cpu::ForwardProblem problem = {
      .common = {.shape = shape,
                 .bf16 = of.q.dtype == DType::kBF16,
                 .mask = mask,
                 .bounds = cpu::find_mask_bounds(shape, mask, views.workspace.data())},
      .q = cpu::head_rows(of.q),
      .k = cpu::head_rows(of.k),
      .v = cpu::head_rows(of.v),
      .o = cpu::head_rows(of.o),
      .lse = of.lse,
      .score_factor = static_cast<float>(attrs.scale * std::numbers::log2e),
      .cap = cpu::ScoreCap(attrs.softcap)};
  std::byte* const memory = views.workspace.data() + cpu::mask_bounds_bytes(shape);
  const std::int64_t scratch_bytes = cpu::forward_scratch_bytes(shape);
  const auto run_task = [&](const cpu::LaneRange& lanes, std::byte* scratch) {
    cpu::ScratchCutter cutter(scratch);
    if (shape.queries == 1) {
      cpu::attention_decode(problem, cpu::cut_decode_scratch(shape, cutter), lanes);
    } else {
      cpu::attention_forward(problem, cpu::cut_forward_scratch(shape, cutter), lanes);
    }
  };
  if (shape.queries == 1) {
    cpu::for_each_task(context.team(), cpu::HeadTasks(shape), memory, scratch_bytes, run_task);
  } else {
    const cpu::LaneTasks tasks(shape, context.threads());
    cpu::for_each_task(context.team(), tasks, memory, scratch_bytes, run_task);
  }
}

std::int64_t workspace_bytes(const AttentionBackwardAttrs& /*attrs*/,
                             cpu::Context& context,
                             Types in) {
  const cpu::AttentionShape shape = cpu::attention_shape(in[1], in[2]);
  const cpu::BackwardTasks tasks(shape, context.threads());
  return cpu::mask_bounds_bytes(shape) +
         context.threads() * cpu::backward_scratch_bytes(shape, tasks.range_blocks());
}

void run(const AttentionBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const AttentionBackwardOperands of = by_name(attrs, views);
  const cpu::AttentionShape shape = cpu::attention_shape(of.q, of.k);
  const cpu::Mask mask = cpu::attention_mask(of.ids, attrs.causal, attrs.window);
  const cpu::BackwardProblem problem = {
      .common = {.shape = shape,
                 .bf16 = of.q.dtype == DType::kBF16,
                 .mask = mask,
                 .bounds = cpu::find_mask_bounds(shape, mask, views.workspace.data())},
      .dout = cpu::head_rows(of.dout),
      .q = cpu::head_rows(of.q),
      .k = cpu::head_rows(of.k),
      .v = cpu::head_rows(of.v),
      .o = cpu::head_rows(of.o),
      .lse = of.lse,
      .dq = cpu::head_rows(of.dq),
      .dk = cpu::head_rows(of.dk),
      .dv = cpu::head_rows(of.dv),
      .scale = static_cast<float>(attrs.scale),
      .score_factor = static_cast<float>(attrs.scale * std::numbers::log2e),
      .cap = cpu::ScoreCap(attrs.softcap)};
  std::byte* const memory = views.workspace.data() + cpu::mask_bounds_bytes(shape);
  const cpu::BackwardTasks tasks(shape, context.threads());
  const std::int64_t scratch_bytes = cpu::backward_scratch_bytes(shape, tasks.range_blocks());
  const auto run_task = [&](const cpu::BackwardTask& task, std::byte* scratch) {
    cpu::ScratchCutter cutter(scratch);
    cpu::attention_backward(
        problem, cpu::cut_backward_scratch(shape, tasks.range_blocks(), cutter), task);
  };
  cpu::for_each_task(context.team(), tasks, memory, scratch_bytes, run_task);
}

}  // namespace tessera
