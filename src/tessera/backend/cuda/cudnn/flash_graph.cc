#include "tessera/backend/cuda/cudnn/flash_graph.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/backend/cuda/cudnn/graph_writer.h"
#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

class FlashWriter {
 public:
  explicit FlashWriter(const FlashProblem& problem)
      : problem_(problem),
        batch_(problem.sequences > 0 ? problem.sequences : problem.batch),
        scores_{batch_, problem.heads, problem.tokens, problem.tokens},
        rows_{batch_, problem.heads, problem.tokens, 1},
        scale_(writer_.constant(problem.scale)) {
    if (problem.sequences > 0) {
      query_lengths_ = lengths(FlashTensor::kQueryLengths);
      key_lengths_ = lengths(FlashTensor::kKeyLengths);
    }
  }

  FlashGraph forward() && {
    const GraphNode q = memory(FlashTensor::kQ);
    const GraphNode k = transposed(FlashTensor::kK);
    const GraphNode v = memory(FlashTensor::kV);
    const GraphNode products = writer_.fresh(scores_);
    writer_.add({.kind = GraphOpKind::kMatmul,
                 .x = q,
                 .y = products,
                 .b = k,
                 .rows = query_lengths_,
                 .columns = key_lengths_});
    const GraphNode scores =
        masked(within(writer_.binary(GraphOpKind::kMultiply, products, scale_)));
    const GraphNode largest = writer_.reduce(GraphOpKind::kMax, scores, writer_.fresh(rows_));
    const GraphNode powers =
        writer_.unary(GraphOpKind::kExp, writer_.binary(GraphOpKind::kSubtract, scores, largest));
    const GraphNode sum = writer_.reduce(GraphOpKind::kSum, powers, writer_.fresh(rows_));
    writer_.add({.kind = GraphOpKind::kAdd,
                 .x = largest,
                 .y = memory(FlashTensor::kLse),
                 .b = writer_.unary(GraphOpKind::kLog, sum)});
    const GraphNode weights = writer_.fresh(scores_, GraphType::kBF16);
    writer_.add({.kind = GraphOpKind::kDivide, .x = powers, .y = weights, .b = sum});
    writer_.add({.kind = GraphOpKind::kMatmul,
                 .x = weights,
                 .y = memory(FlashTensor::kO),
                 .b = v,
                 .rows = query_lengths_,
                 .depth = key_lengths_});
    return finish();
  }

  FlashGraph backward() && {
    const GraphNode q = memory(FlashTensor::kQ);
    const GraphNode k = transposed(FlashTensor::kK);
    const GraphNode v = transposed(FlashTensor::kV);
    const GraphNode dout = memory(FlashTensor::kDout);
    const GraphNode delta = make_delta(dout);
    // The weights, from the denominators that forward kept.
    const GraphNode scores = writer_.binary(
        GraphOpKind::kMultiply, writer_.product(q, k, writer_.fresh(scores_)), scale_);
    const GraphNode weights = writer_.unary(
        GraphOpKind::kExp,
        masked(writer_.binary(GraphOpKind::kSubtract, scores, memory(FlashTensor::kLse))));
    sum_over_queries(weights, dout, FlashTensor::kDv);
    // Their slopes.
    const GraphNode arriving = writer_.product(dout, v, writer_.fresh(scores_));
    const GraphNode change = writer_.binary(
        GraphOpKind::kMultiply, writer_.binary(GraphOpKind::kSubtract, arriving, delta), weights);
    const GraphNode slopes =
        writer_.fresh(scores_, problem_.any_order ? GraphType::kF32 : GraphType::kBF16);
    writer_.add({.kind = GraphOpKind::kMultiply, .x = change, .y = slopes, .b = scale_});
    sum_over_queries(slopes, q, FlashTensor::kDk);
    const GraphNode keys = writer_.reshaped(k, key_sizes(), strides(FlashTensor::kK));
    if (problem_.any_order) {
      const GraphNode sum = writer_.product(slopes, keys, memory(FlashTensor::kDqSum));
      writer_.add({.kind = GraphOpKind::kCopy, .x = sum, .y = memory(FlashTensor::kDq)});
    } else {
      writer_.product(slopes, keys, memory(FlashTensor::kDq));
    }
    return finish();
  }

 private:
  FlashGraph finish() { return {.graph = std::move(writer_).finish(), .places = places_}; }

  static bool is_of_keys(FlashTensor tensor) {
    return tensor == FlashTensor::kK || tensor == FlashTensor::kV || tensor == FlashTensor::kDk ||
           tensor == FlashTensor::kDv;
  }

  GraphDims key_sizes() const {
    return {batch_, problem_.kv_heads, problem_.tokens, problem_.channels};
  }

  GraphDims query_sizes() const {
    return {batch_, problem_.heads, problem_.tokens, problem_.channels};
  }

  // Of batch, heads, tokens and channels.
  GraphDims strides(FlashTensor tensor) const {
    const auto& [batch, tokens, heads] = problem_.strides[tensor];
    return {batch, heads, tokens, 1};
  }

  GraphNode memory(FlashTensor tensor) {
    const bool is_row = tensor == FlashTensor::kLse || tensor == FlashTensor::kDelta;
    const GraphDims sizes = is_row ? rows_ : is_of_keys(tensor) ? key_sizes() : query_sizes();
    return in_memory(
        tensor,
        {.sizes = sizes,
         .strides = strides(tensor),
         .type = is_row || tensor == FlashTensor::kDqSum ? GraphType::kF32 : GraphType::kBF16});
  }

  // Keys or values with channels before tokens.
  GraphNode transposed(FlashTensor tensor) {
    GraphTensor turned = {
        .sizes = key_sizes(), .strides = strides(tensor), .type = GraphType::kBF16, .token_dim = 3};
    std::swap(turned.sizes[2], turned.sizes[3]);
    std::swap(turned.strides[2], turned.strides[3]);
    return in_memory(tensor, turned);
  }

  // How long each sequence is.
  GraphNode lengths(FlashTensor tensor) {
    const GraphDims sizes = {batch_, 1, 1, 1};
    places_[tensor] = writer_.put({.sizes = sizes,
                                   .strides = packed_strides(sizes),
                                   .type = GraphType::kI32,
                                   .is_virtual = false});
    return places_[tensor];
  }

  GraphNode in_memory(FlashTensor tensor, GraphTensor made) {
    made.is_virtual = false;
    if (problem_.sequences > 0) {
      const GraphDims sizes = {batch_ + 1, 1, 1, 1};
      made.lengths = is_of_keys(tensor) ? key_lengths_ : query_lengths_;
      made.starts = writer_.put({.sizes = sizes,
                                 .strides = packed_strides(sizes),
                                 .type = GraphType::kI64,
                                 .is_virtual = false});
      places_[starts_of(tensor)] = *made.starts;
    }
    places_[tensor] = writer_.put(made);
    return places_[tensor];
  }

  // Without what lies behind the end of a sequence.
  GraphNode within(GraphNode scores) {
    if (problem_.sequences == 0) {
      return scores;
    }
    const GraphNode row = writer_.index(GraphOpKind::kRowIndex, scores);
    const GraphNode column = writer_.index(GraphOpKind::kColumnIndex, scores);
    const GraphNode has_row = writer_.compare(GraphOpKind::kLess, row, query_lengths_.value());
    const GraphNode has_column = writer_.compare(GraphOpKind::kLess, column, key_lengths_.value());
    return writer_.select(scores, writer_.compare(GraphOpKind::kBoth, has_row, has_column));
  }

  // Without keys behind their query.
  GraphNode masked(GraphNode scores) {
    if (!problem_.causal) {
      return scores;
    }
    const GraphNode row = writer_.index(GraphOpKind::kRowIndex, scores);
    const GraphNode column = writer_.index(GraphOpKind::kColumnIndex, scores);
    return writer_.select(scores, writer_.compare(GraphOpKind::kAtLeast, row, column));
  }

  // dout . o of each query.
  GraphNode make_delta(GraphNode dout) {
    const GraphNode products = writer_.fresh(query_sizes());
    writer_.add(
        {.kind = GraphOpKind::kMultiply, .x = dout, .y = products, .b = memory(FlashTensor::kO)});
    const GraphNode sums = writer_.reduce(GraphOpKind::kSum, products, writer_.fresh(rows_));
    const GraphNode delta = memory(FlashTensor::kDelta);
    writer_.add(
        {.kind = GraphOpKind::kMultiply, .x = sums, .y = delta, .b = writer_.constant(1.0F)});
    return delta;
  }

  // result[j] = sum_i pairs[i, j] rows[i], over a group's heads too.
  void sum_over_queries(GraphNode pairs, GraphNode rows, FlashTensor result) {
    const GraphDims packed = packed_strides(scores_);
    const GraphNode turned =
        writer_.reshaped(pairs, scores_, {packed[0], packed[1], packed[3], packed[2]});
    if (problem_.heads == problem_.kv_heads) {
      writer_.product(turned, rows, memory(result));
      return;
    }
    const GraphNode of_heads =
        writer_.product(turned, rows, writer_.fresh(query_sizes(), GraphType::kBF16));
    writer_.reduce(GraphOpKind::kSum, of_heads, memory(result));
  }

  const FlashProblem& problem_;
  GraphWriter writer_;
  ByFlashTensor<std::size_t> places_ = {};
  std::int64_t batch_;
  GraphDims scores_;  // queries x keys
  GraphDims rows_;    // one for each query
  GraphNode scale_;
  std::optional<GraphNode> query_lengths_ = {};  // of sequences within rows
  std::optional<GraphNode> key_lengths_ = {};
};

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The largest divisor of `count` for which `fits` holds; 0 where not even one does.
template <class Fits>
std::int64_t largest_divisor(std::int64_t count, const Fits& fits) {
  for (std::int64_t parts = 1; parts <= count; ++parts) {
    if (count % parts == 0 && fits(count / parts)) {
      return count / parts;
    }
  }
  return 0;
}

// Without slack.
std::int64_t measured_workspace_bytes(const FlashProblem& problem) {
  constexpr std::int64_t kOfEveryGraph = 256;
  if (!problem.backward) {
    // What it keeps of each sequence, of so many at least and whatever the device; for an odd
    // number it takes one less.
    constexpr std::int64_t kOfSequence = 256;
    constexpr std::int64_t kFewest = 64;
    return problem.sequences == 0
               ? kOfEveryGraph
               : kOfEveryGraph + kOfSequence * (std::max(kFewest, problem.sequences) + 2);
  }
  constexpr std::int64_t kElement = 2;  // bytes
  const std::int64_t heads = problem.batch * problem.heads;
  const std::int64_t slopes = problem.any_order ? 0
                                                : kElement * heads * round_up(problem.tokens, 64) *
                                                      round_up(problem.tokens, 128);
  // dk and dv of every head, before those of a group are added.
  const std::int64_t of_heads = problem.heads == problem.kv_heads
                                    ? 0
                                    : 2 * kElement * heads * problem.tokens * problem.channels;
  return slopes + of_heads + kOfEveryGraph;
}

}  // namespace

std::vector<void*> FlashGraph::by_place(const FlashPointers& pointers) const {
  std::vector<void*> placed(graph.tensors.size());
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (pointers.at(i) != nullptr) {
      placed.at(places.at(i)) = pointers.at(i);
    }
  }
  return placed;
}

FlashGraph flash_graph(const FlashProblem& problem) {
  TESSERA_CHECK(problem.kv_heads > 0 && problem.heads % problem.kv_heads == 0,
                "{} heads in {} groups",
                problem.heads,
                problem.kv_heads);
  TESSERA_CHECK(problem.sequences == 0 || (problem.causal && !problem.backward),
                "sequences within rows are for causal attention, forward");
  FlashWriter writer(problem);
  return problem.backward ? std::move(writer).backward() : std::move(writer).forward();
}

std::int64_t flash_workspace_bytes(const FlashProblem& problem) {
  return measured_workspace_bytes(problem) + kFlashSlack;
}

FlashScratch flash_scratch(const FlashProblem& problem) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t rows =
      problem.batch * problem.heads * problem.tokens * std::int64_t{sizeof(float)};
  const std::int64_t dq_sum = round_up(rows, kAlignment);
  const std::int64_t sums = problem.any_order ? rows * problem.channels : 0;
  return {.dq_sum = dq_sum, .library = dq_sum + round_up(sums, kAlignment)};
}

FlashProblem largest_part(const FlashProblem& problem) {
  FlashProblem part = problem;
  const auto with = [&](std::int64_t rows, std::int64_t groups) {
    part.batch = rows;
    part.kv_heads = groups;
    part.heads = groups * (problem.heads / problem.kv_heads);
    return flash_scratch(part).library + measured_workspace_bytes(part) <= limits().flash_workspace;
  };
  const std::int64_t rows = largest_divisor(
      problem.batch, [&](std::int64_t some) { return with(some, problem.kv_heads); });
  if (rows > 0) {
    return part;
  }
  if (largest_divisor(problem.kv_heads, [&](std::int64_t some) { return with(1, some); }) == 0) {
    part.batch = 0;
  }
  return part;
}

}  // namespace tessera::cuda
