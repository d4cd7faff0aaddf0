// Bandwidth of the kernels that are not GEMMs, each alone on buffers several times the last-level
// cache, beside a copy measured in turns with it (A B A B, medians).
//
// The copy is the better of memcpy and the library's own streaming copy (cast to the same dtype).
// Bytes are the least that a kernel can move: every operand read once and every result written
// once; the softmax part of cross entropy reads its logits twice by design, and is also shown with
// one read, which is what memory sees where a row fits the cache.
//
// usage: kernels_bench [--seconds=S] [--threads=N] [--filter=TEXT]

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/base/half.h"
#include "tessera/base/median.h"
#include "tessera/comm/quantize.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/view.h"
#include "tessera/ops/adamw/adamw.h"
#include "tessera/ops/cross_entropy/softmax_cpu.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/swiglu/swiglu.h"

namespace {

using tessera::DType;
using tessera::median;
using tessera::View;
using tessera::Views;
using tessera::cpu::Context;

struct Options {
  double seconds = 1.5;  // per kernel
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::string filter;
};

constexpr std::int64_t kGiB = std::int64_t{1} << 30U;

// One block of memory for all tensors of a case, on huge pages where the system has them.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      fmt::print(stderr, "kernels_bench: cannot allocate {} bytes\n", bytes);
      std::exit(4);
    }
    madvise(data_, bytes_, MADV_HUGEPAGE);
  }

  ~Memory() { munmap(data_, bytes_); }

  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void reset() { used_ = 0; }

  // Elements that are small positive numbers: 0.5 to 1.5 as float, 0 to 255 as an integer.
  View tensor(DType dtype, std::initializer_list<std::int64_t> sizes) {
    constexpr std::size_t kAlignment = 4096;
    View view = {.data = static_cast<std::byte*>(data_) + used_, .dtype = dtype};
    view.num_dims = static_cast<std::int32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), view.sizes.begin());
    std::int64_t stride = 1;
    for (std::size_t i = sizes.size(); i > 0; --i) {
      view.strides[i - 1] = stride;
      stride *= view.sizes[i - 1];
    }
    fill(view);
    const std::size_t bytes =
        static_cast<std::size_t>(view.num_elements()) * tessera::size_bytes(dtype);
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ > bytes_) {
      fmt::print(stderr, "kernels_bench: a case needs more than {} bytes\n", bytes_);
      std::exit(1);
    }
    return view;
  }

 private:
  static void fill(const View& view) {
    for (std::int64_t i = 0; i < view.num_elements(); ++i) {
      const float value = 0.5F + static_cast<float>(i * 7919 % 1021) / 1021.0F;
      if (view.dtype == DType::kF32) {
        view.as<float>()[i] = value;
      } else if (view.dtype == DType::kBF16) {
        view.as<tessera::BFloat16>()[i] = tessera::to_bfloat16(value);
      } else if (view.dtype == DType::kI32) {
        view.as<std::int32_t>()[i] = static_cast<std::int32_t>(i % 256);
      }
    }
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
};

// A kernel bound to its tensors, and the bytes of one run.
struct Bound {
  std::function<void(Context&)> run;
  double bytes = 0;
};

struct Case {
  std::string name;
  std::function<Bound(Memory&)> bind;
};

double bytes_of(std::span<const View> views) {
  double bytes = 0;
  for (const View& view : views) {
    bytes += static_cast<double>(view.num_elements()) *
             static_cast<double>(tessera::size_bytes(view.dtype));
  }
  return bytes;
}

// The op with its operands, results and workspace; bytes as if all were moved once.
template <class Attrs>
Bound bind_op(const Attrs& attrs,
              std::vector<View> in,
              std::vector<View> out,
              std::vector<std::byte> workspace = {}) {
  const double bytes = bytes_of(in) + bytes_of(out);
  auto shared = std::make_shared<std::vector<std::byte>>(std::move(workspace));
  return {.run =
              [=](Context& context) {
                run(attrs, context, Views{.in = in, .out = out, .workspace = *shared});
              },
          .bytes = bytes};
}

constexpr std::int64_t kWidth = 768;
constexpr std::int64_t kRows = std::int64_t{1} << 18U;  // 805 MB of f32 in one tensor

Case rms_norm_case(DType dtype, bool residual) {
  return {fmt::format("rms_norm{} {}", residual ? " residual" : "", name(dtype)),
          [=](Memory& memory) {
            const View x = memory.tensor(dtype, {kRows, kWidth});
            const View gain = memory.tensor(dtype, {kWidth});
            const View y = memory.tensor(dtype, {kRows, kWidth});
            const View rstd = memory.tensor(DType::kF32, {kRows});
            const tessera::RmsNormAttrs attrs = {.residual = residual};
            if (!residual) {
              return bind_op(attrs, {x, gain}, {y, rstd});
            }
            const View r = memory.tensor(dtype, {kRows, kWidth});
            const View h = memory.tensor(dtype, {kRows, kWidth});
            return bind_op(attrs, {x, r, gain}, {y, rstd, h});
          }};
}

Case rms_norm_backward_case(DType dtype, bool residual, bool weight_gradient) {
  return {fmt::format("rms_norm_backward{}{} {}",
                      residual ? " residual" : "",
                      weight_gradient ? " dg" : "",
                      name(dtype)),
          [=](Memory& memory) {
            const View dy = memory.tensor(dtype, {kRows, kWidth});
            const View x = memory.tensor(dtype, {kRows, kWidth});
            const View gain = memory.tensor(dtype, {kWidth});
            const View rstd = memory.tensor(DType::kF32, {kRows});
            std::vector<View> in = {dy, x, gain, rstd};
            if (residual) {
              in.push_back(memory.tensor(dtype, {kRows, kWidth}));
            }
            std::vector<View> out = {memory.tensor(dtype, {kRows, kWidth})};
            if (weight_gradient) {
              out.push_back(memory.tensor(DType::kF32, {kWidth}));
            }
            return bind_op(tessera::RmsNormBackwardAttrs{.residual = residual,
                                                         .weight_gradient = weight_gradient},
                           in,
                           out,
                           std::vector<std::byte>(64 * kWidth * sizeof(float)));
          }};
}

Case layer_norm_case() {
  return {"layer_norm f32", [](Memory& memory) {
            const View x = memory.tensor(DType::kF32, {kRows, kWidth});
            const View gain = memory.tensor(DType::kF32, {kWidth});
            const View bias = memory.tensor(DType::kF32, {kWidth});
            const View y = memory.tensor(DType::kF32, {kRows, kWidth});
            const View mean = memory.tensor(DType::kF32, {kRows});
            const View rstd = memory.tensor(DType::kF32, {kRows});
            return bind_op(tessera::LayerNormAttrs{}, {x, gain, bias}, {y, mean, rstd});
          }};
}

Case swiglu_case(DType dtype) {
  return {fmt::format("swiglu {}", name(dtype)), [=](Memory& memory) {
            const View gate = memory.tensor(dtype, {kRows, kWidth});
            const View up = memory.tensor(dtype, {kRows, kWidth});
            const View y = memory.tensor(dtype, {kRows, kWidth});
            return bind_op(tessera::SwigluAttrs{}, {gate, up}, {y});
          }};
}

Case swiglu_backward_case(DType dtype) {
  return {fmt::format("swiglu_backward {}", name(dtype)), [=](Memory& memory) {
            const View dy = memory.tensor(dtype, {kRows, kWidth});
            const View gate = memory.tensor(dtype, {kRows, kWidth});
            const View up = memory.tensor(dtype, {kRows, kWidth});
            const View dgate = memory.tensor(dtype, {kRows, kWidth});
            const View dup = memory.tensor(dtype, {kRows, kWidth});
            return bind_op(tessera::SwigluBackwardAttrs{}, {dy, gate, up}, {dgate, dup});
          }};
}

Case gelu_case() {
  return {"gelu f32", [](Memory& memory) {
            const View x = memory.tensor(DType::kF32, {kRows, kWidth});
            const View y = memory.tensor(DType::kF32, {kRows, kWidth});
            return bind_op(tessera::GeluAttrs{}, {x}, {y});
          }};
}

Case add_case() {
  return {"add f32", [](Memory& memory) {
            const View a = memory.tensor(DType::kF32, {kRows, kWidth});
            const View b = memory.tensor(DType::kF32, {kRows, kWidth});
            const View y = memory.tensor(DType::kF32, {kRows, kWidth});
            return bind_op(tessera::AddAttrs{}, {a, b}, {y});
          }};
}

Case rope_case(DType dtype, std::int64_t heads, std::int64_t head_dim) {
  return {fmt::format("rope {}x{} {}", heads, head_dim, name(dtype)), [=](Memory& memory) {
            const std::int64_t rows = kRows * kWidth / (heads * head_dim);
            const View x = memory.tensor(dtype, {1, rows, heads, head_dim});
            const View table = memory.tensor(DType::kF32, {1, rows, head_dim});
            const View y = memory.tensor(dtype, {1, rows, heads, head_dim});
            return bind_op(tessera::RopeAttrs{}, {x, table}, {y});
          }};
}

Case adamw_case(bool master) {
  return {master ? "adamw bf16, master" : "adamw f32", [=](Memory& memory) {
            const DType dtype = master ? DType::kBF16 : DType::kF32;
            constexpr std::int64_t kSize = std::int64_t{1} << 27U;
            std::vector<View> in = {memory.tensor(dtype, {kSize}),
                                    memory.tensor(DType::kF32, {kSize}),
                                    memory.tensor(DType::kF32, {kSize}),
                                    memory.tensor(DType::kF32, {kSize})};
            std::vector<View> out = {in[0], in[2], in[3]};
            if (master) {
              in.push_back(memory.tensor(DType::kF32, {kSize}));
              out.push_back(in.back());
            }
            for (const float scalar : {1e-3F, 3.0F, 1.0F, 1.0F}) {  // lr, t, scale, apply
              View view = memory.tensor(DType::kF32, {1});
              *view.as<float>() = scalar;
              view.num_dims = 0;
              in.push_back(view);
            }
            Bound bound = bind_op(tessera::AdamwAttrs{.master = master}, in, out);
            if (master) {
              bound.bytes -= 2.0 * kSize;  // the bf16 parameter is only written
            }
            return bound;
          }};
}

Case sum_squares_case() {
  return {"sum_squares f32", [](Memory& memory) {
            const View x = memory.tensor(DType::kF32, {2 * kRows, kWidth});
            const View words = memory.tensor(DType::kI64, {tessera::kExactSumWords});
            constexpr std::size_t kMaxThreads = 1024;
            return bind_op(tessera::SumSquaresAttrs{},
                           {x},
                           {words},
                           std::vector<std::byte>(kMaxThreads * 8 * tessera::kExactSumWords));
          }};
}

// num_reads: how often the logits are counted as read.
Case softmax_case(std::int64_t vocab, bool in_place, double num_reads) {
  return {fmt::format("softmax_cross_entropy {}{}{}",
                      vocab,
                      in_place ? " in place" : "",
                      num_reads == 1 ? ", one read counted" : ""),
          [=](Memory& memory) {
            const std::int64_t rows = kRows * kWidth / vocab;
            const View logits = memory.tensor(DType::kF32, {rows, vocab});
            const View labels = memory.tensor(DType::kI32, {rows});
            const View gradient = in_place ? logits : memory.tensor(DType::kF32, {rows, vocab});
            const tessera::cpu::SoftmaxRows task = {.logits = logits.as<float>(),
                                                    .labels = labels.as<std::int32_t>(),
                                                    .rows = rows,
                                                    .vocab = vocab,
                                                    .seed = 1.0F,
                                                    .gradient = gradient.data};
            return Bound{.run =
                             [=](Context& context) {
                               tessera::cpu::softmax_cross_entropy(task, context.team());
                             },
                         .bytes = 4.0 * static_cast<double>(rows * vocab) * (num_reads + 1)};
          }};
}

// A gradient of f32 onto the wire, or the sum of two ranks' parts off it.
Case wire_case(tessera::WireFormat format, bool is_sum) {
  return {
      fmt::format("{} {}", is_sum ? "decode_sum 2x" : "encode", name(format)), [=](Memory& memory) {
        const tessera::Encoding encoding = {.format = format};
        const std::int64_t wire = wire_bytes(encoding, kRows * kWidth);
        const View x = memory.tensor(DType::kF32, {kRows * kWidth});
        const View codes = memory.tensor(DType::kF32, {wire / 4});
        const tessera::Elements elements = {
            .dtype = DType::kF32, .data = x.as<std::byte>(), .count = kRows * kWidth};
        const double bytes = 4.0 * kRows * kWidth + static_cast<double>(wire);
        tessera::ThreadTeam caller(1);
        encode(elements, elements.count, encoding, codes.as<std::byte>(), caller);
        if (!is_sum) {
          return Bound{
              .run =
                  [=](Context& context) {
                    encode(
                        elements, elements.count, encoding, codes.as<std::byte>(), context.team());
                  },
              .bytes = bytes};
        }
        const View other = memory.tensor(DType::kF32, {wire / 4});
        encode(elements, elements.count, encoding, other.as<std::byte>(), caller);
        return Bound{.run =
                         [=](Context& context) {
                           const std::array<const std::byte*, 2> parts = {codes.as<std::byte>(),
                                                                          other.as<std::byte>()};
                           decode_sum(parts, encoding, elements, context.team());
                         },
                     .bytes = bytes + static_cast<double>(wire)};
      }};
}

std::vector<Case> all_cases() {
  constexpr DType kF32 = DType::kF32;
  constexpr DType kBF16 = DType::kBF16;
  return {rms_norm_case(kF32, false),
          rms_norm_case(kF32, true),
          rms_norm_backward_case(kF32, false, false),
          rms_norm_backward_case(kF32, true, true),
          swiglu_case(kF32),
          swiglu_backward_case(kF32),
          wire_case(tessera::WireFormat::kInt8, false),
          wire_case(tessera::WireFormat::kInt4, false),
          wire_case(tessera::WireFormat::kInt8, true),
          wire_case(tessera::WireFormat::kInt4, true),
          softmax_case(32000, false, 2),
          softmax_case(32000, false, 1),
          softmax_case(32000, true, 2),
          softmax_case(128256, true, 2),
          adamw_case(false),
          adamw_case(true),
          rope_case(kF32, 12, 64),
          rope_case(kF32, 8, 128),
          add_case(),
          gelu_case(),
          layer_norm_case(),
          sum_squares_case(),
          rms_norm_case(kBF16, false),
          rms_norm_backward_case(kBF16, true, true),
          swiglu_case(kBF16),
          swiglu_backward_case(kBF16),
          rope_case(kBF16, 12, 64)};
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Two GiB that are copied from the first half to the second.
class Copies {
 public:
  Copies() : memory_(2 * kGiB + 8192) {
    from_ = memory_.tensor(DType::kF32, {kGiB / 4});
    to_ = memory_.tensor(DType::kF32, {kGiB / 4});
  }

  static constexpr double kBytes = 2.0 * kGiB;

  void copy_memory(Context& context) const {
    const tessera::cpu::Work bytes = {.count = kGiB, .elements = 1, .cut = 4096};
    tessera::cpu::parallel_ranges(context.team(), bytes, [&](tessera::cpu::Range range) {
      std::memcpy(to_.as<std::byte>() + range.begin,
                  from_.as<std::byte>() + range.begin,
                  static_cast<std::size_t>(range.end - range.begin));
    });
  }

  void copy_streaming(Context& context) const {
    const std::vector<View> in = {from_};
    const std::vector<View> out = {to_};
    run(tessera::CastAttrs{}, context, Views{.in = in, .out = out, .workspace = {}});
  }

 private:
  Memory memory_;
  View from_;
  View to_;
};

void measure(const Case& item, const Options& options, Context& context, const Copies& copies) {
  Memory memory(5 * kGiB);
  const Bound kernel = item.bind(memory);
  std::vector<double> kernel_s;
  std::vector<double> memcpy_s;
  std::vector<double> streaming_s;
  kernel.run(context);
  double spent = 0;
  while (spent < options.seconds || kernel_s.size() < 5) {
    memcpy_s.push_back(seconds_of([&] { copies.copy_memory(context); }));
    kernel_s.push_back(seconds_of([&] { kernel.run(context); }));
    streaming_s.push_back(seconds_of([&] { copies.copy_streaming(context); }));
    spent += memcpy_s.back() + kernel_s.back() + streaming_s.back();
  }
  const double copy = Copies::kBytes / std::min(median(memcpy_s), median(streaming_s)) * 1e-9;
  const double bandwidth = kernel.bytes / median(kernel_s) * 1e-9;
  fmt::print("{:<46} {:7.1f} GB/s   copy {:6.1f} GB/s   ratio {:.2f}\n",
             item.name,
             bandwidth,
             copy,
             bandwidth / copy);
  std::fflush(stdout);
}

Options parse(std::span<char* const> arguments) {
  Options options;
  for (const std::string_view argument : arguments) {
    const std::size_t equals = std::min(argument.find('='), argument.size() - 1);
    const std::string_view key = argument.substr(0, equals);
    const std::string value(argument.substr(equals + 1));
    if (key == "--seconds") {
      options.seconds = std::stod(value);
    } else if (key == "--threads") {
      options.threads = std::stoi(value);
    } else if (key == "--filter") {
      options.filter = value;
    } else {
      fmt::print(stderr,
                 "kernels_bench: unknown argument {}; it takes --seconds=, --threads=, --filter=\n",
                 argument);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options =
      parse(std::span<char* const>(argv, static_cast<std::size_t>(argc)).subspan(1));
  Context context(options.threads);
  const Copies copies;
  fmt::print("{} threads\n", options.threads);
  for (const Case& item : all_cases()) {
    if (item.name.find(options.filter) != std::string::npos) {
      measure(item, options, context, copies);
    }
  }
  return 0;
}
