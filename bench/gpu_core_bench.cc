// The GPU's kernels, each alone in tensors much larger than its caches, against what the GPU can do
// and against PyTorch's compiled forms of them, in turns (A B A B, medians), on random data.
//
// The ceilings are measured first: a product of 8192 x 8192 x 8192 in bf16 by the fastest of
// cuBLASLt's algorithms, and a copy in device memory, bytes read and written both counted. The
// bytes of an op are the least that it can move: each operand read once, each result written once.
// What products of 8-bit floats reach is a share of the bf16 product, too, and may be more than 1.
//
// usage: gpu_core_bench [--filter=TEXT] [--peer=SCRIPT] [--device=cpu]
//        gpu_core_bench --kernels=NAME   how long our own kernels of an op take, as a JSON object
//   --peer    bench/peers/torch_ops_gpu.py; without it PyTorch is left out
//   --device  cpu runs small shapes there, without ceilings: to try the program itself

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/child_process.h"
#include "bench/gpu_activity.h"
#include "bench/gpu_ceilings.h"
#include "bench/peer_process.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/devices.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/machine.h"
#include "tessera/ir/view.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/pass.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

enum class Fill : std::uint8_t { kRandom, kValue, kIds, kPositions };

struct Tensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes;
  Fill fill = Fill::kRandom;
  double value = 0;        // of kValue; kIds: less than it
  std::int64_t over = -1;  // a result in the memory of this operand

  std::int64_t elements() const {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) {
      count *= size;
    }
    return count;
  }

  std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(size_bytes(dtype)); }
};

struct Case {
  std::string name;  // by which the peer knows it, if it does
  OpRef op;
  std::vector<Tensor> in;
  std::vector<Tensor> out;
  double target = 0;  // of the ceiling; 0: none is set
  double flop = 0;    // of products, at the speed of the large one
  double bytes = -1;  // that are moved at the speed of a copy; less than 0: all, once
};

// Sizes of Llama 8B's layers and one sequence of 8192.
struct Shape {
  std::int64_t rows = 8192;
  std::int64_t width = 4096;
  std::int64_t ffn = 14336;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 8;
  std::int64_t vocab = 128256;
  std::int64_t flat = std::int64_t{1} << 27U;  // of a shard of parameters

  std::int64_t head() const { return width / heads; }
};

constexpr Shape kSmall = {
    .rows = 64, .width = 64, .ffn = 128, .heads = 4, .kv_heads = 2, .vocab = 512, .flat = 4096};

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

Tensor scalar(double value) {
  return {.dtype = kF32, .sizes = {}, .fill = Fill::kValue, .value = value};
}

double tensor_bytes(const std::vector<Tensor>& tensors) {
  double bytes = 0;
  for (const Tensor& each : tensors) {
    bytes += static_cast<double>(each.bytes());
  }
  return bytes;
}

double product_flop(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

void add_norms(const Shape& s, std::vector<Case>& cases) {
  const Tensor x{.dtype = kBF16, .sizes = {s.rows, s.width}};
  const Tensor gain{.dtype = kBF16, .sizes = {s.width}};
  const Tensor row{.dtype = kF32, .sizes = {s.rows}};
  const Tensor sums{.dtype = kF32, .sizes = {s.width}};
  cases.push_back({"rms_norm", make_op(RmsNormAttrs{}), {x, gain}, {x, row}});
  cases.push_back(
      {"rms_norm_residual", make_op(RmsNormAttrs{.residual = true}), {x, x, gain}, {x, row, x}});
  cases.push_back({"rms_norm_backward",
                   make_op(RmsNormBackwardAttrs{.residual = true, .weight_gradient = true}),
                   {x, x, gain, row, x},
                   {x, sums},
                   0.85});
  cases.push_back({"layer_norm", make_op(LayerNormAttrs{}), {x, gain, gain}, {x, row, row}});
  cases.push_back(
      {"layer_norm_backward", make_op(LayerNormBackwardAttrs{}), {x, x, gain, row, row}, {x}});
}

void add_elements(const Shape& s, std::vector<Case>& cases) {
  const Tensor wide{.dtype = kBF16, .sizes = {s.rows, s.ffn}};
  const Tensor x{.dtype = kBF16, .sizes = {1, s.rows, s.heads, s.head()}};
  const Tensor table{.dtype = kF32, .sizes = {1, s.rows, s.head()}};
  cases.push_back({"swiglu", make_op(SwigluAttrs{}), {wide, wide}, {wide}, 0.85});
  cases.push_back(
      {"swiglu_backward", make_op(SwigluBackwardAttrs{}), {wide, wide, wide}, {wide, wide}, 0.85});
  cases.push_back({"gelu", make_op(GeluAttrs{}), {wide}, {wide}});
  cases.push_back({"gelu_backward", make_op(GeluBackwardAttrs{}), {wide, wide}, {wide}});
  cases.push_back({"add", make_op(AddAttrs{}), {wide, wide}, {wide}});
  const Tensor bias{.dtype = kBF16, .sizes = {s.ffn}};
  const Tensor sums{.dtype = kF32, .sizes = {s.ffn}};
  cases.push_back({"add_bias", make_op(AddBiasAttrs{}), {wide, bias}, {wide}});
  cases.push_back({"bias_gradient", make_op(BiasGradientAttrs{}), {wide}, {sums}});
  cases.push_back({"rope", make_op(RopeAttrs{}), {x, table}, {x}});
}

void add_update(const Shape& s, std::vector<Case>& cases) {
  const Tensor flat{.dtype = kF32, .sizes = {s.flat}};
  Tensor second = flat;  // squares are not negative
  second.fill = Fill::kValue;
  second.value = 0.01;
  const auto over = [](Tensor tensor, std::int64_t operand) {
    tensor.over = operand;
    return tensor;
  };
  const Tensor parameter{.dtype = kBF16, .sizes = {s.flat}};
  Case adamw = {
      "adamw",
      make_op(AdamwAttrs{.master = true}),
      {parameter, flat, flat, second, flat, scalar(1e-3), scalar(3), scalar(1), scalar(1)},
      {over(parameter, 0), over(flat, 2), over(second, 3), over(flat, 4)},
      0.85};
  // The parameter is only written.
  adamw.bytes =
      tensor_bytes(adamw.in) + tensor_bytes(adamw.out) - static_cast<double>(parameter.bytes());
  cases.push_back(adamw);
  const Tensor words{.dtype = DType::kI64, .sizes = {kExactSumWords}};
  cases.push_back({"sum_squares", make_op(SumSquaresAttrs{}), {flat}, {words}});
  cases.push_back({"cast", make_op(CastAttrs{.dtype = kBF16}), {flat}, {parameter}});
}

// Rows whose logits exist at one time, as chunk_loss() chooses them for a GPU.
std::int64_t loss_chunk(const Shape& s) {
  return std::min(rows_of_logits(s.vocab, kBF16, kDeviceLogitsBytes), s.rows);
}

// Logits are read in bf16 for the softmax's sums and for the gradient, which is written so, too.
double softmax_bytes(const Shape& s) {
  return static_cast<double>(s.rows) * static_cast<double>(s.vocab) * (2 + 2 + 2);
}

void add_vocabulary(const Shape& s, std::vector<Case>& cases) {
  const Tensor x{.dtype = kBF16, .sizes = {s.rows, s.width}};
  const Tensor table{.dtype = kBF16, .sizes = {s.vocab, s.width}};
  const Tensor gradient{.dtype = kF32, .sizes = {s.vocab, s.width}};
  const Tensor ids{.dtype = DType::kI32,
                   .sizes = {s.rows},
                   .fill = Fill::kIds,
                   .value = static_cast<double>(s.vocab)};
  Case lookup = {"embedding", make_op(EmbeddingAttrs{}), {table, ids}, {x}};
  lookup.bytes = 2.0 * static_cast<double>(x.bytes());
  cases.push_back(lookup);
  Case backward = {"embedding_backward",
                   make_op(EmbeddingBackwardAttrs{.vocab = s.vocab}),
                   {x, ids},
                   {gradient}};
  cases.push_back(backward);
  // Its products and, beside them, the softmax between them.
  Case loss = {
      "cross_entropy",
      make_op(CrossEntropyAttrs{.gradients = true, .chunk = loss_chunk(s), .logits = kBF16}),
      {x, table, ids, scalar(1.0 / static_cast<double>(s.rows))},
      {scalar(0), x, gradient}};
  loss.flop = 3 * product_flop(s.rows, s.vocab, s.width);
  loss.bytes = softmax_bytes(s);
  cases.push_back(loss);
}

void add_attention(const Shape& s, std::vector<Case>& cases) {
  const Tensor q{.dtype = kBF16, .sizes = {1, s.rows, s.heads, s.head()}};
  const Tensor k{.dtype = kBF16, .sizes = {1, s.rows, s.kv_heads, s.head()}};
  const Tensor lse{.dtype = kF32, .sizes = {1, s.heads, s.rows}};
  const Tensor positions{.dtype = DType::kI32, .sizes = {1, s.rows}, .fill = Fill::kPositions};
  const Tensor documents{.dtype = DType::kI32, .sizes = {1, s.rows}, .fill = Fill::kValue};
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head()));
  // Two products of half a matrix of queries x keys; the backward has five.
  const double flop = product_flop(s.rows, s.rows, s.width);
  Case forward = {"attention",
                  make_op(AttentionAttrs{.scale = scale}),
                  {q, k, k, positions, positions, documents, documents},
                  {q, lse}};
  forward.flop = flop;
  forward.bytes = 0;
  Case backward = {"attention_backward",
                   make_op(AttentionBackwardAttrs{.scale = scale}),
                   {q, q, k, k, q, lse, positions, positions, documents, documents},
                   {q, k, k}};
  backward.flop = 2.5 * flop;
  backward.bytes = 0;
  cases.push_back(forward);
  cases.push_back(backward);
}

void add_products(const Shape& s, std::vector<Case>& cases) {
  const Tensor x{.dtype = kBF16, .sizes = {s.rows, s.width}};
  const Tensor weight{.dtype = kBF16, .sizes = {2 * s.ffn, s.width}};
  const Tensor wide{.dtype = kBF16, .sizes = {s.rows, 2 * s.ffn}};
  Tensor gradient{.dtype = kF32, .sizes = {2 * s.ffn, s.width}};
  // The first one of a step, whose algorithm those have that are added to it.
  Case first = {
      "matmul_weight_first", make_op(MatmulAttrs{.transpose_a = true}), {wide, x}, {gradient}};
  Case forward = {
      "matmul", make_op(MatmulAttrs{.transpose_b = true, .dtype = kBF16}), {x, weight}, {wide}};
  Case input = {"matmul_input", make_op(MatmulAttrs{.dtype = kBF16}), {wide, weight}, {x}};
  const Tensor accumulator = gradient;
  gradient.over = 2;
  Case weights = {"matmul_weight",
                  make_op(MatmulAttrs{.transpose_a = true, .accumulate = true}),
                  {wide, x, accumulator},
                  {gradient}};
  for (Case* each : {&forward, &input, &first, &weights}) {
    each->flop = product_flop(s.rows, 2 * s.ffn, s.width);
    each->bytes = 0;
    cases.push_back(*each);
  }
}

void add_float8(const Shape& s, std::vector<Case>& cases) {
  constexpr DType kCode = DType::kF8E4M3;
  const Tensor wide{.dtype = kBF16, .sizes = {s.rows, s.ffn}};
  const Tensor codes{.dtype = kCode, .sizes = {s.rows, s.ffn}};
  const Tensor transposed{.dtype = kCode, .sizes = {s.ffn, s.rows}};
  const Tensor each_row{.dtype = kF32, .sizes = {s.rows}, .fill = Fill::kValue, .value = 1};
  cases.push_back({"amax", make_op(AmaxAttrs{.dims = 2}), {wide}, {scalar(0)}});
  cases.push_back({"amax_rows", make_op(AmaxAttrs{}), {wide}, {each_row}});
  cases.push_back({"quantize_float8",
                   make_op(QuantizeFloat8Attrs{.dims = 2}),
                   {wide, scalar(1)},
                   {codes, scalar(0)}});
  cases.push_back({"quantize_float8_both",
                   make_op(QuantizeFloat8Attrs{.dims = 2, .transposed = true, .rows = 1}),
                   {wide, scalar(1)},
                   {codes, transposed, scalar(0)}});
  cases.push_back({"quantize_float8_rows",
                   make_op(QuantizeFloat8Attrs{.power_of_two = true}),
                   {wide, each_row},
                   {codes, each_row}});
  Case product = {"scaled_matmul",
                  make_op(ScaledMatmulAttrs{.dtype = kBF16}),
                  {{.dtype = kCode, .sizes = {s.rows, s.width}},
                   {.dtype = kCode, .sizes = {2 * s.ffn, s.width}},
                   scalar(1),
                   scalar(1)},
                  {{.dtype = kBF16, .sizes = {s.rows, 2 * s.ffn}}}};
  product.flop = product_flop(s.rows, 2 * s.ffn, s.width);
  product.bytes = 0;
  cases.push_back(product);
}

// The products of a chunk of the loss, each alone.
std::vector<Case> loss_products(const Shape& s) {
  const std::int64_t rows = loss_chunk(s);
  const Tensor x{.dtype = kBF16, .sizes = {rows, s.width}};
  const Tensor head{.dtype = kBF16, .sizes = {s.vocab, s.width}};
  const Tensor logits{.dtype = kBF16, .sizes = {rows, s.vocab}};
  const Tensor sums{.dtype = kF32, .sizes = {s.vocab, s.width}};
  Tensor summed = sums;
  summed.over = 2;
  std::vector<Case> cases = {
      {"  logits", make_op(MatmulAttrs{.transpose_b = true, .dtype = kBF16}), {x, head}, {logits}},
      {"  gradient of x", make_op(MatmulAttrs{.dtype = kBF16}), {logits, head}, {x}},
      {"  gradient of the head, first",
       make_op(MatmulAttrs{.transpose_a = true}),
       {logits, x},
       {sums}},
      {"  gradient of the head",
       make_op(MatmulAttrs{.transpose_a = true, .accumulate = true}),
       {logits, x, sums},
       {summed}}};
  for (Case& each : cases) {
    each.flop = product_flop(rows, s.vocab, s.width);
    each.bytes = 0;
  }
  return cases;
}

std::vector<Case> all_cases(const Shape& shape) {
  std::vector<Case> cases;
  add_norms(shape, cases);
  add_elements(shape, cases);
  add_update(shape, cases);
  add_vocabulary(shape, cases);
  add_attention(shape, cases);
  add_products(shape, cases);
  add_float8(shape, cases);
  return cases;
}

constexpr std::int64_t kAlignment = 4096;

std::int64_t rounded_up(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <class T>
void fill_with(std::span<std::byte> bytes, std::int64_t count, const auto& value_at) {
  auto* const values = reinterpret_cast<T*>(bytes.data());
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = value_at(i);
  }
}

// Values from a generator whose low bits are as random as the others; floats of -1 to 1, and of 8
// bits any that are finite.
void fill(const Tensor& tensor, std::span<std::byte> bytes) {
  std::uint64_t state = 0x853c49e6748fea9bU;
  const auto next = [&] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state >> 33U);
  };
  const auto real = [&](std::int64_t) {
    constexpr float kHalf = 1073741824.0F;
    return tensor.fill == Fill::kValue ? static_cast<float>(tensor.value)
                                       : static_cast<float>(next()) / kHalf - 1.0F;
  };
  const std::int64_t count = tensor.elements();
  if (tensor.dtype == kF32) {
    fill_with<float>(bytes, count, real);
  } else if (tensor.dtype == kBF16) {
    fill_with<BFloat16>(bytes, count, [&](std::int64_t i) { return to_bfloat16(real(i)); });
  } else if (is_float8(tensor.dtype)) {
    constexpr std::uint32_t kMost = 0x78;  // below it all codes of both formats are finite
    fill_with<std::uint8_t>(bytes, count, [&](std::int64_t) {
      const std::uint32_t random = next();
      return static_cast<std::uint8_t>((random & 0x80U) | (random >> 8U) % kMost);
    });
  } else if (tensor.dtype == DType::kI32) {
    fill_with<std::int32_t>(bytes, count, [&](std::int64_t i) {
      const auto limit = static_cast<std::uint32_t>(tensor.value);
      return static_cast<std::int32_t>(tensor.fill == Fill::kPositions ? i
                                       : tensor.fill == Fill::kIds     ? next() % limit
                                                                       : 0);
    });
  }
}

View view_of(const Tensor& tensor, std::byte* data) {
  View view = {.data = data, .dtype = tensor.dtype};
  view.num_dims = static_cast<std::int32_t>(tensor.sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = tensor.sizes.size(); i > 0; --i) {
    view.sizes[i - 1] = tensor.sizes[i - 1];
    view.strides[i - 1] = stride;
    stride *= tensor.sizes[i - 1];
  }
  return view;
}

// An op in memory of the device.
class Bound {
 public:
  Bound(Backend& backend, const Case& test) : backend_(backend), op_(test.op) {
    std::int64_t bytes = 0;
    const auto place = [&](const Tensor& tensor) {
      const std::int64_t at = bytes;
      bytes += rounded_up(tensor.bytes());
      return at;
    };
    std::vector<std::int64_t> in;
    std::vector<std::int64_t> out;
    for (const Tensor& each : test.in) {
      in.push_back(place(each));
      in_.push_back(view_of(each, nullptr));
    }
    for (const Tensor& each : test.out) {
      out.push_back(each.over >= 0 ? in[static_cast<std::size_t>(each.over)] : place(each));
      out_.push_back(view_of(each, nullptr));
    }
    const std::int64_t workspace = backend.workspace_bytes(*op_, in_, out_);
    const std::int64_t workspace_at = bytes;
    arena_ = backend.allocate(bytes + rounded_up(workspace));
    for (std::size_t i = 0; i < in.size(); ++i) {
      fill(test.in[i], {arena_->host() + in[i], static_cast<std::size_t>(test.in[i].bytes())});
      arena_->to_device(in[i], test.in[i].bytes());
      in_[i].data = arena_->data() + in[i];
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      out_[i].data = arena_->data() + out[i];
    }
    workspace_ = {arena_->data() + workspace_at, static_cast<std::size_t>(workspace)};
  }

  // Seconds of one of `runs` runs.
  double run(std::int64_t runs) {
    backend_.synchronize();
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = 0; i < runs; ++i) {
      backend_.run(*op_, {.in = in_, .out = out_, .workspace = workspace_}, StreamId{0});
    }
    backend_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(runs);
  }

 private:
  Backend& backend_;
  OpRef op_;
  std::unique_ptr<Arena> arena_;
  std::vector<View> in_;
  std::vector<View> out_;
  std::span<std::byte> workspace_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// How often to run what takes so long, for samples of a twentieth of a second.
std::int64_t runs_for(double seconds) {
  constexpr double kSample = 0.05;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(kSample / seconds), 1, 500);
}

// Our seconds and the peer's, in turns; the peer's are 0 where there is none.
struct Times {
  double own = 0;
  double peer = 0;
};

using Peer = std::unique_ptr<PeerProcess>;

// The peer's seconds of one run; 0 where it has no such op. What it fails with ends it, not us.
double ask(Peer& peer, const std::string& name, std::int64_t runs) {
  try {
    return peer == nullptr ? 0.0
                           : peer->ask({{"op", name}, {"runs", runs}}).at("seconds").get<double>();
  } catch (const std::exception& error) {
    std::printf("  no more of PyTorch: %s\n", error.what());
    peer = nullptr;
    return 0;
  }
}

Times measure(Bound& bound, const std::string& name, Peer& peer) {
  constexpr int kRounds = 5;
  bound.run(1);
  const std::int64_t own_runs = runs_for(bound.run(1));
  const double peer_seconds = ask(peer, name, 1);
  std::vector<double> own;
  std::vector<double> other;
  for (int round = 0; round < kRounds; ++round) {
    own.push_back(bound.run(own_runs));
    if (peer_seconds > 0) {
      other.push_back(ask(peer, name, runs_for(peer_seconds)));
    }
  }
  return {.own = median(own), .peer = other.empty() ? 0.0 : median(other)};
}

void print_row(const Case& test, const Times& times, const Ceilings& ceilings) {
  const double bytes = test.bytes < 0 ? tensor_bytes(test.in) + tensor_bytes(test.out) : test.bytes;
  std::string text = format("  {:<30}{:9.3f} ms", test.name, times.own * 1e3);
  text += bytes > 0 ? format("{:8.0f} GB/s", bytes / times.own / 1e9) : "             ";
  text +=
      test.flop > 0 ? format("{:7.0f} TFLOP/s", test.flop / times.own / 1e12) : "               ";
  if (ceilings.copy_bytes_per_s > 0) {
    const double bound =
        bytes / ceilings.copy_bytes_per_s + test.flop / ceilings.product_flop_per_s;
    text += format("   {:4.2f} of the ceiling", bound / times.own);
    text += test.target > 0 ? format(" (target {:.2f})", test.target) : "              ";
  }
  if (times.peer > 0) {
    text += format("   {:5.2f} x PyTorch", times.peer / times.own);
  }
  std::printf("%s\n", text.c_str());
}

// Seconds of our own kernels in one run of an op, by CUPTI, in a process of its own: it has to be
// there before anything else is. 0 where it cannot.
double kernel_seconds(const char* self, const std::string& name) {
  constexpr int kAtMost = 60;
  try {
    const nlohmann::json found = output_of(format("'{}' --kernels={}", self, name), kAtMost);
    if (found.contains("seconds")) {
      return found.at("seconds");
    }
    std::printf("    %s\n", found.at("problem").get<std::string>().c_str());
  } catch (const std::exception& error) {
    std::printf("    %s\n", error.what());
  }
  return 0;
}

// The softmax of the loss, whose kernels are our own. Without CUPTI what is left of the loss
// without its products, timed alone: a GPU that slows down for its power may take longer or shorter
// for them in their place, which makes a much larger share of what is left.
void print_softmax(Backend& backend,
                   const Shape& shape,
                   double seconds,
                   const Ceilings& ceilings,
                   const char* self) {
  const auto chunks = static_cast<double>(shape.rows) / static_cast<double>(loss_chunk(shape));
  for (const Case& product : loss_products(shape)) {
    Bound bound(backend, product);
    Peer none;
    const Times times = measure(bound, product.name, none);
    print_row(product, times, ceilings);
    const bool is_sum = product.out.front().over >= 0;
    const bool is_first = product.name.ends_with("first");
    seconds -= (is_first ? 1 : is_sum ? chunks - 1 : chunks) * times.own;
  }
  const double measured = ceilings.copy_bytes_per_s > 0 ? kernel_seconds(self, "cross_entropy") : 0;
  if (measured <= 0 && seconds <= 0) {
    std::printf("    softmax: not measured: the products alone take as long as the whole\n");
    return;
  }
  Case softmax = {measured > 0 ? "  softmax: our kernels" : "  softmax: about what is left",
                  nullptr,
                  {},
                  {},
                  0.85};
  seconds = measured > 0 ? measured : seconds;
  softmax.bytes = softmax_bytes(shape);
  print_row(softmax, {.own = seconds, .peer = 0}, ceilings);
}

struct Options {
  std::string filter;
  std::string peer;
  std::string kernels;
  bool on_cpu = false;
};

// On the GPU as a run with run.time_gemms has it.
std::unique_ptr<Backend> make_backend(bool on_cpu) {
  DeviceOptions options;
  if (const auto cache = user_cache_directory()) {
    options.algorithm_files = {*cache / "gemms.txt"};
  }
  return on_cpu ? make_cpu_backend(1) : make_device_backend(0, 1, options);
}

nlohmann::json measure_kernels(const std::string& name) {
  GpuActivity activity;
  const std::unique_ptr<Backend> backend = make_backend(false);
  for (const Case& test : all_cases(Shape())) {
    if (test.name == name) {
      constexpr int kRuns = 5;
      Bound bound(*backend, test);
      bound.run(2);
      activity.restart();
      bound.run(kRuns);
      const std::optional<double> seconds = activity.own_kernel_seconds();
      return seconds ? nlohmann::json{{"seconds", *seconds / kRuns}}
                     : nlohmann::json{{"problem", activity.problem()}};
    }
  }
  fail(ErrorCode::kInvalidConfig, "--kernels={}: there is no such op", name);
}

Peer start_peer(const Options& options) {
  try {
    return options.peer.empty()
               ? nullptr
               : std::make_unique<PeerProcess>(options.peer.c_str(),
                                               std::vector<std::pair<const char*, std::int64_t>>{
                                                   {"small", options.on_cpu ? 1 : 0}},
                                               "bf16");
  } catch (const std::exception& error) {
    std::printf("without PyTorch: %s\n", error.what());
    return nullptr;
  }
}

// Whether all could be measured.
bool run_benchmarks(const Options& options, const char* self) {
  if (!options.kernels.empty()) {
    std::printf("%s\n", measure_kernels(options.kernels).dump().c_str());
    return true;
  }
  const std::string problem = options.on_cpu ? "" : find_devices().problem;
  TESSERA_REQUIRE(problem.empty(), ErrorCode::kInvalidConfig, "no GPU to measure: {}", problem);
  Ceilings ceilings;
  if (!options.on_cpu) {
    ceilings = measure_ceilings();
    std::printf("ceilings: %.0f TFLOP/s (8192^3, bf16), %.0f GB/s (copy)\n",
                ceilings.product_flop_per_s / 1e12,
                ceilings.copy_bytes_per_s / 1e9);
  }
  const std::unique_ptr<Backend> backend = make_backend(options.on_cpu);
  Peer peer = start_peer(options);
  bool is_whole = true;
  const Shape shape = options.on_cpu ? kSmall : Shape();
  for (const Case& test : all_cases(shape)) {
    if (test.name.find(options.filter) == std::string::npos) {
      continue;
    }
    try {
      Times times;
      {
        Bound bound(*backend, test);
        times = measure(bound, test.name, peer);
      }
      print_row(test, times, ceilings);
      if (test.name == "cross_entropy") {
        print_softmax(*backend, shape, times.own, ceilings, self);
      }
    } catch (const std::exception& error) {
      std::printf("  %-30s failed: %s\n", test.name.c_str(), error.what());
      is_whole = false;
    }
  }
  return is_whole && (options.peer.empty() || peer != nullptr);
}

Options parse(std::span<char*> arguments) {
  Options options;
  for (const std::string_view argument : arguments.subspan(1)) {
    const std::size_t equals = argument.find('=');
    const std::string_view key = argument.substr(0, equals);
    const std::string value(argument.substr(std::min(equals, argument.size() - 1) + 1));
    TESSERA_REQUIRE(
        key == "--filter" || key == "--peer" || key == "--kernels" || argument == "--device=cpu",
        ErrorCode::kInvalidConfig,
        "{}: expected --filter=TEXT, --peer=SCRIPT, --kernels=NAME or --device=cpu",
        argument);
    options.filter = key == "--filter" ? value : options.filter;
    options.peer = key == "--peer" ? value : options.peer;
    options.kernels = key == "--kernels" ? value : options.kernels;
    options.on_cpu = options.on_cpu || key == "--device";
  }
  return options;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return tessera::run_benchmarks(tessera::parse({argv, static_cast<std::size_t>(argc)}), argv[0])
             ? 0
             : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
