// Causal attention of documents within rows by a library's kernels: what the ids say is found on
// the device, so that a step's work is the same whatever its documents are.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/attention.h"
#include "tessera/backend/cuda/flash_graph.h"
#include "tessera/backend/cuda/graphs.h"
#include "tessera/backend/cuda/workspace.h"

namespace tessera::cuda {
namespace {

// Documents that rows have at most, a number for so many of their tokens: the library begins blocks
// for each, also for those that there are not. Where rows have more, which are then short, own
// kernels run, which pass over what nobody sees.
#ifdef TESSERA_EMULATED_CUDA
constexpr std::int64_t kTokensOfADocument = 8;
#else
constexpr std::int64_t kTokensOfADocument = 512;
#endif

std::int64_t most_sequences(const Shape& shape) {
  const std::int64_t of_row = shape.queries / kTokensOfADocument;
  return shape.batch * (of_row < 1 ? 1 : of_row);
}

// What is found, in the workspace.
struct Sequences {
  std::int64_t most = 0;
  std::int64_t* starts[5] = {};     // of q, k, v, o and lse: most + 1
  std::int32_t* lengths = nullptr;  // most
  std::int32_t* first = nullptr;    // the first token of each, counted through the rows: most + 1
  std::int32_t* found = nullptr;    // 1 where these are all that the rows have, else 0
};

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

// Whether a sequence begins at a token; and what is wrong where tokens do not stand in order.
__device__ bool begins(const SearchTask& task, std::int64_t token, bool& is_wrong) {
  const Mask& mask = task.mask;
  const std::int32_t document = mask.query_documents[token];
  const std::int32_t position = mask.query_positions[token];
  is_wrong =
      is_wrong || mask.key_documents[token] != document || mask.key_positions[token] != position;
  if (token % task.shape.queries == 0) {
    return true;
  }
  const std::int32_t before = mask.query_documents[token - 1];
  is_wrong = is_wrong || document < before ||
             (document == before && position <= mask.query_positions[token - 1]);
  return document != before;
}

// What each thread of the block found in its stretch of tokens.
struct Findings {
  std::int32_t begins[kThreads];
  std::int32_t wrongs[kThreads];
  std::int32_t total;  // of sequences; 0 where they cannot be used
};

// From how many begin in each thread's stretch to how many begin before it. By one thread.
__device__ void add_up(Findings& findings, const Sequences& out) {
  std::int32_t sum = 0;
  std::int32_t wrong = 0;
  for (int i = 0; i < kThreads; ++i) {
    const std::int32_t of_thread = findings.begins[i];
    findings.begins[i] = sum;
    sum += of_thread;
    wrong += findings.wrongs[i];
  }
  findings.total = wrong == 0 && sum <= out.most ? sum : 0;
  *out.found = findings.total > 0 ? 1 : 0;
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

// By one block: each thread looks at a stretch of tokens.
__global__ static void find_sequences(SearchTask task) {
  __shared__ Findings findings;
  const Sequences& out = task.out;
  const std::int64_t tokens = task.shape.batch * task.shape.queries;
  const std::int64_t begin = tokens * threadIdx.x / kThreads;
  const std::int64_t end = tokens * (threadIdx.x + 1) / kThreads;
  std::int32_t count = 0;
  bool is_wrong = false;
  for (std::int64_t token = begin; token < end; ++token) {
    count += begins(task, token, is_wrong) ? 1 : 0;
  }
  findings.begins[threadIdx.x] = count;
  findings.wrongs[threadIdx.x] = is_wrong ? 1 : 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    add_up(findings, out);
    out.first[findings.total] = static_cast<std::int32_t>(tokens);
  }
  __syncthreads();
  const std::int32_t total = findings.total;
  std::int32_t number = findings.begins[threadIdx.x];
  for (std::int64_t token = begin; total > 0 && token < end; ++token) {
    if (begins(task, token, is_wrong)) {
      out.first[number++] = static_cast<std::int32_t>(token);
    }
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

// What the workspace holds.
struct Scratch {
  Sequences sequences;
  float* lse;  // (b, t, heads)
  std::int64_t library;

  Scratch(std::byte* data, const Shape& shape) {
    Parts parts(data);
    sequences.most = most_sequences(shape);
    for (std::int64_t*& starts : sequences.starts) {
      starts = parts.take<std::int64_t>(sequences.most + 1);
    }
    sequences.lengths = parts.take<std::int32_t>(sequences.most);
    sequences.first = parts.take<std::int32_t>(sequences.most + 1);
    sequences.found = parts.take<std::int32_t>(1);
    lse = parts.take<float>(shape.batch * shape.queries * shape.heads);
    library = parts.size();
  }
};

// With lse token by token, as ragged tensors lie wherever cuDNN's attention is used.
FlashProblem sequences_problem(const Forward<BFloat16>& task) {
  FlashProblem problem = graph_problem(task);
  problem.sequences = most_sequences(task.shape);
  problem.strides[FlashTensor::kLse] = {task.shape.queries * task.shape.heads, task.shape.heads, 1};
  return problem;
}

}  // namespace

std::int64_t sequences_workspace_bytes(const Forward<BFloat16>& task) {
  return Scratch(nullptr, task.shape).library + flash_workspace_bytes(sequences_problem(task)) +
         kWorkspaceAlignment;
}

const std::int32_t* run_sequences(const Context& context,
                                  const Forward<BFloat16>& task,
                                  std::span<std::byte> workspace) {
  const std::span<std::byte> space = aligned_workspace(workspace);
  const Scratch scratch(space.data(), task.shape);
  const Sequences& found = scratch.sequences;
  const FlashProblem problem = sequences_problem(task);
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
  pointers[FlashTensor::kLengths] = found.lengths;
  launch(context, "sequences of attention", 1, find_sequences, search);
  if (!context.graphs().run(context.stream(),
                            problem,
                            pointers,
                            space.subspan(static_cast<std::size_t>(scratch.library)))) {
    return nullptr;
  }
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
