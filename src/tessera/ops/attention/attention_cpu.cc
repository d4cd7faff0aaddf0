#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "tessera/backend/cpu/context.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/attention_blocks.h"
#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/attention/attention_part.h"
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

std::int64_t forward_scratch_bytes(const AttentionShape& shape, bool decodes) {
  ScratchCutter counter(nullptr);
  if (decodes) {
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

template <class Attrs>
AttentionProblem problem_of(const Attrs& attrs,
                            const View& q,
                            const View& k,
                            const AttentionIds& ids,
                            std::span<std::byte> workspace) {
  const AttentionShape shape = attention_shape(q, k);
  const Mask mask = attention_mask(ids, attrs.causal, attrs.window);
  return {.shape = shape,
          .bf16 = q.dtype == DType::kBF16,
          .mask = mask,
          .bounds = find_mask_bounds(shape, mask, workspace.data())};
}

template <class Attrs>
float score_factor(const Attrs& attrs) {
  return static_cast<float>(attrs.scale * std::numbers::log2e);
}

template <class Attrs>
ForwardProblem forward_problem(const Attrs& attrs,
                               const AttentionOperands& of,
                               std::span<std::byte> workspace) {
  return {.common = problem_of(attrs, of.q, of.k, of.ids, workspace),
          .q = head_rows(of.q),
          .k = head_rows(of.k),
          .v = head_rows(of.v),
          .o = head_rows(of.o),
          .lse = of.lse,
          .carry = {},
          .score_factor = score_factor(attrs),
          .cap = ScoreCap(attrs.softcap)};
}

template <class Attrs>
BackwardProblem backward_problem(const Attrs& attrs,
                                 const AttentionBackwardOperands& of,
                                 std::span<std::byte> workspace) {
  return {.common = problem_of(attrs, of.q, of.k, of.ids, workspace),
          .dout = head_rows(of.dout),
          .q = head_rows(of.q),
          .k = head_rows(of.k),
          .v = head_rows(of.v),
          .o = head_rows(of.o),
          .lse = of.lse,
          .dq = head_rows(of.dq),
          .dk = head_rows(of.dk),
          .dv = head_rows(of.dv),
          .carry = {},
          .scale = static_cast<float>(attrs.scale),
          .score_factor = score_factor(attrs),
          .cap = ScoreCap(attrs.softcap)};
}

// `decodes`: by the kernel for one query position, which steps over parts leave to the other.
std::int64_t forward_bytes(const AttentionShape& shape, Context& context, bool decodes) {
  return mask_bounds_bytes(shape) + context.threads() * forward_scratch_bytes(shape, decodes);
}

void run_forward(const ForwardProblem& problem, Context& context, std::byte* memory) {
  const AttentionShape& shape = problem.common.shape;
  memory += mask_bounds_bytes(shape);
  const bool decodes = shape.queries == 1 && !problem.carry.is_part;
  const std::int64_t scratch_bytes = forward_scratch_bytes(shape, decodes);
  const auto run_task = [&](const LaneRange& lanes, std::byte* scratch) {
    ScratchCutter cutter(scratch);
    if (decodes) {
      attention_decode(problem, cut_decode_scratch(shape, cutter), lanes);
    } else {
      attention_forward(problem, cut_forward_scratch(shape, cutter), lanes);
    }
  };
  if (decodes) {
    for_each_task(context.team(), HeadTasks(shape), memory, scratch_bytes, run_task);
  } else {
    const LaneTasks tasks(shape, context.threads());
    for_each_task(context.team(), tasks, memory, scratch_bytes, run_task);
  }
}

std::int64_t backward_bytes(const AttentionShape& shape, Context& context) {
  const BackwardTasks tasks(shape, context.threads());
  return mask_bounds_bytes(shape) +
         context.threads() * backward_scratch_bytes(shape, tasks.range_blocks());
}

void run_backward(const BackwardProblem& problem, Context& context, std::byte* memory) {
  const AttentionShape& shape = problem.common.shape;
  memory += mask_bounds_bytes(shape);
  const BackwardTasks tasks(shape, context.threads());
  const std::int64_t scratch_bytes = backward_scratch_bytes(shape, tasks.range_blocks());
  const auto run_task = [&](const BackwardTask& task, std::byte* scratch) {
    ScratchCutter cutter(scratch);
    attention_backward(problem, cut_backward_scratch(shape, tasks.range_blocks(), cutter), task);
  };
  for_each_task(context.team(), tasks, memory, scratch_bytes, run_task);
}

}  // namespace

}  // namespace cpu

std::int64_t workspace_bytes(const AttentionAttrs& /*attrs*/, cpu::Context& context, Types in) {
  const cpu::AttentionShape shape = cpu::attention_shape(in[0], in[1]);
  return cpu::forward_bytes(shape, context, shape.queries == 1);
}

void run(const AttentionAttrs& attrs, cpu::Context& context, const Views& views) {
  const AttentionOperands of = by_name(attrs, views);
  cpu::run_forward(
      cpu::forward_problem(attrs, of, views.workspace), context, views.workspace.data());
}

std::int64_t workspace_bytes(const AttentionPartAttrs& /*attrs*/, cpu::Context& context, Types in) {
  return cpu::forward_bytes(cpu::attention_shape(in[0], in[1]), context, /*decodes=*/false);
}

void run(const AttentionPartAttrs& attrs, cpu::Context& context, const Views& views) {
  const AttentionPartOperands part = by_name(attrs, views);
  cpu::ForwardProblem problem = cpu::forward_problem(attrs, part.of, views.workspace);
  problem.carry.is_part = true;
  problem.carry.is_wide = part.of.o.dtype == DType::kF32;
  if (attrs.step > 0) {
    problem.carry.is_first = false;
    problem.carry.o = cpu::head_rows(part.carry_o);
    problem.carry.lse = part.carry_lse;
  }
  cpu::run_forward(problem, context, views.workspace.data());
}

std::int64_t workspace_bytes(const AttentionBackwardAttrs& /*attrs*/,
                             cpu::Context& context,
                             Types in) {
  return cpu::backward_bytes(cpu::attention_shape(in[1], in[2]), context);
}

void run(const AttentionBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const AttentionBackwardOperands of = by_name(attrs, views);
  cpu::run_backward(
      cpu::backward_problem(attrs, of, views.workspace), context, views.workspace.data());
}

std::int64_t workspace_bytes(const AttentionPartBackwardAttrs& /*attrs*/,
                             cpu::Context& context,
                             Types in) {
  return cpu::backward_bytes(cpu::attention_shape(in[1], in[2]), context);
}

void run(const AttentionPartBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const AttentionPartBackwardOperands part = by_name(attrs, views);
  cpu::BackwardProblem problem = cpu::backward_problem(attrs, part.of, views.workspace);
  problem.is_part = true;
  if (attrs.step > 0) {
    problem.has_carry = true;
    problem.carry = cpu::head_rows(part.carry);
  }
  cpu::run_backward(problem, context, views.workspace.data());
}

}  // namespace tessera
