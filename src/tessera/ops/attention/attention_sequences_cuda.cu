// Causal attention of documents within rows by a library's kernels: what the ids say is found on
// the device, so that a step's work is the same whatever its documents are.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/cudnn/flash_graph.h"
#include "tessera/backend/cuda/cudnn/graphs.h"
#include "tessera/ops/attention/attention_tasks_cuda.h"

namespace tessera::cuda {
namespace {

// Where elements of a tensor's tokens lie.
struct Places {
  std::int64_t row;
  std::int64_t token;
};

struct SearchTask {
  Shape shape;
  Mask mask;
  Places places[5];
  Sequences out;
};

// Whether a sequence begins at a token; and what is wrong where tokens do not stand in order. Reads
// all that it may need at once, so that loads do not wait for each other.
__device__ bool begins(const SearchTask& task, std::int32_t token, bool& is_wrong) {
  const Mask& mask = task.mask;
  const bool is_first = token % static_cast<std::int32_t>(task.shape.queries) == 0;  // of a row
  const std::int32_t before = is_first ? token : token - 1;
  const std::int32_t document = mask.query_documents[token];
  const std::int32_t position = mask.query_positions[token];
  const std::int32_t key_document = mask.key_documents[token];
  const std::int32_t key_position = mask.key_positions[token];
  const std::int32_t document_before = mask.query_documents[before];
  const std::int32_t position_before = mask.query_positions[before];
  const bool is_new = document != document_before;
  const bool goes_back = document < document_before || (!is_new && position <= position_before);
  is_wrong =
      is_wrong || key_document != document || key_position != position || (!is_first && goes_back);
  return is_first || is_new;
}

constexpr int kWarps = kThreads / kWarp;
constexpr int kAtOnce = 4;  // tokens of a thread, whose loads are on their way together
constexpr std::int64_t kChunk = std::int64_t{kAtOnce} * kThreads;

// A bit for each of kChunk tokens at which a sequence begins. There are two, by turns:
// who writes one again has read it.
struct Findings {
  std::uint32_t words[kAtOnce][kWarps];
};

// Notes which of the thread's tokens, from `own` on, begin a sequence; `count` begin before the
// chunk. Returns how many do up to its end.
__device__ std::int32_t note_chunk(const Sequences& out,
                                   const Findings& found,
                                   const bool (&begin)[kAtOnce],
                                   std::int64_t own,
                                   std::int32_t count) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::uint32_t lanes_before = (1U << threadIdx.x % kWarp) - 1;
  for (int i = 0; i < kAtOnce; ++i) {
    for (int w = 0; w < kWarps; ++w) {
      const std::uint32_t word = found.words[i][w];
      const std::int32_t number = count + std::popcount(word & lanes_before);
      if (begin[i] && w == warp && number < out.most) {
        out.first[number] = static_cast<std::int32_t>(own + std::int64_t{i} * kThreads);
      }
      count += std::popcount(word);
    }
  }
  return count;
}

// Notes the first tokens of sequences in order, as far as there is room; returns how many there
// are, on each thread, and what is wrong with the thread's tokens.
__device__ std::int32_t note_firsts(const SearchTask& task, Findings* findings, bool& is_wrong) {
  const auto tokens = static_cast<std::int32_t>(task.shape.batch * task.shape.queries);
  std::int32_t count = 0;
  for (std::int64_t first = 0; first < tokens; first += kChunk) {
    Findings& found = findings[first / kChunk % 2];
    const std::int64_t own = first + threadIdx.x;
    bool begin[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t token = own + std::int64_t{i} * kThreads;
      const bool is_new =
          begins(task, static_cast<std::int32_t>(token < tokens ? token : tokens - 1), is_wrong);
      begin[i] = token < tokens && is_new;
    }
    for (int i = 0; i < kAtOnce; ++i) {
      const std::uint32_t word = ballot(begin[i]);
      if (threadIdx.x % kWarp == 0) {
        found.words[i][threadIdx.x / kWarp] = word;
      }
    }
    __syncthreads();
    count = note_chunk(task.out, found, begin, own, count);
  }
  return count;
}

// Where sequence i lies, and how long it is. Not every version of the library takes sequences of no
// tokens: where there are fewer than `most`, those that there are not come first, each the first
// token alone, whose result is its value whatever else its sequence holds.
__device__ void place_sequence(const SearchTask& task, std::int64_t i, std::int32_t total) {
  const Sequences& out = task.out;
  const std::int64_t number = i - (out.most - total);
  const std::int64_t token = number < 0 ? 0 : out.first[number];
  for (int tensor = 0; tensor < 5; ++tensor) {
    out.starts[tensor][i] = token / task.shape.queries * task.places[tensor].row +
                            token % task.shape.queries * task.places[tensor].token;
  }
  if (i < out.most) {
    out.lengths[i] = number < 0 ? 1 : out.first[number + 1] - out.first[number];
  }
}

// By one block, whose threads stand side by side in the tokens.
__global__ static void find_sequences(SearchTask task) {
  __shared__ Findings findings[2];
  const Sequences& out = task.out;
  bool is_wrong = false;
  const std::int32_t count = note_firsts(task, findings, is_wrong);
  const bool is_usable = block_sum(is_wrong ? 1 : 0) == 0 && count <= out.most;
  const std::int32_t total = is_usable ? count : 0;
  if (threadIdx.x == 0) {
    *out.found = total > 0 ? 1 : 0;
    out.first[total] = static_cast<std::int32_t>(task.shape.batch * task.shape.queries);
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i <= out.most; i += kThreads) {
    place_sequence(task, i, total);
  }
}

// From lse as the library writes it, (b, t, heads), to (b, heads, t), where it has.
__global__ static void turn_lse(Shape shape,
                                const float* from,
                                const std::int32_t* found,
                                float* to) {
  const std::int64_t count = *found == 0 ? 0 : shape.batch * shape.queries * shape.heads;
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    const std::int64_t row = i / (shape.queries * shape.heads);
    const std::int64_t head = i / shape.queries % shape.heads;
    const std::int64_t token = i % shape.queries;
    to[i] = from[(row * shape.queries + token) * shape.heads + head];
  }
}

}  // namespace

const std::int32_t* run_sequences(const Context& context,
                                  const Forward<BFloat16>& task,
                                  std::span<std::byte> workspace) {
  const std::span<std::byte> space = aligned_workspace(workspace);
  const SequencesScratch scratch(space.data(), task.shape);
  const Sequences& found = scratch.sequences;
  const FlashProblem problem = sequences_problem(task);
  if (!context.graphs().takes(problem)) {
    return nullptr;
  }
  FlashPointers pointers = graph_pointers(task);
  pointers[FlashTensor::kLse] = scratch.lse;
  SearchTask search = {.shape = task.shape, .mask = task.mask, .places = {}, .out = found};
  for (const FlashTensor tensor :
       {FlashTensor::kQ, FlashTensor::kK, FlashTensor::kV, FlashTensor::kO, FlashTensor::kLse}) {
    const auto number = static_cast<std::size_t>(tensor);
    const auto& [row, token, head] = problem.strides[tensor];
    search.places[number] = {.row = row, .token = token};
    pointers[starts_of(tensor)] = found.starts[number];
  }
  pointers[FlashTensor::kQueryLengths] = found.lengths;
  pointers[FlashTensor::kKeyLengths] = found.lengths;
  launch(context, "sequences of attention", 1, find_sequences, search);
  const bool has_run =
      context.graphs().run(context.stream(),
                           problem,
                           pointers,
                           space.subspan(static_cast<std::size_t>(scratch.library)));
  TESSERA_CHECK(has_run, "a graph that is taken does not run");
  const std::int64_t values = task.shape.batch * task.shape.queries * task.shape.heads;
  launch(context,
         "lse of attention",
         blocks_for(context, values),
         turn_lse,
         task.shape,
         scratch.lse,
         found.found,
         task.lse);
  return found.found;
}

}  // namespace tessera::cuda
