#include "tessera/backend/cpu/gemm.h"

#include <algorithm>
#include <array>

#include <omp.h>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm_pieces.h"
#include "tessera/backend/cpu/primitive_cache.h"
#include "tessera/backend/cpu/thin_gemm.h"
#include "tessera/backend/cpu/widened_gemm.h"
#include "tessera/base/error.h"

namespace tessera::cpu {
namespace {

dnnl::memory::data_type data_type(DType dtype) {
  TESSERA_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16,
                  ErrorCode::kUnsupported,
                  "matrix products of {} on the CPU: expected f32 or bf16",
                  name(dtype));
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

dnnl::memory::desc matrix(
    std::int64_t rows, std::int64_t columns, bool transposed, std::int64_t pitch, DType dtype) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, pitch} : dnnl::memory::dims{pitch, 1};
  return {{rows, columns}, data_type(dtype), strides};
}

// Whether oneDNN has products of bf16 for this processor.
bool has_bf16(const dnnl::engine& engine) {
  const auto square = matrix(16, 16, false, 16, DType::kBF16);
  try {
    const dnnl::matmul::primitive_desc description({square, square, square}, engine);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

// oneDNN 2.6's kernels for AMX end the process with an illegal instruction where sums are of so
// many terms, for some sizes of the other dims (68 x 14 and 68 x 42, say), or on two threads give
// wrong sums (57 x 8).
constexpr std::int64_t kBrokenDepth = 63;

bool is_widened(Context& context, const Gemm& gemm) {
  return gemm.input == DType::kBF16 &&
         (!context.primitives().multiplies_bf16() || gemm.k == kBrokenDepth);
}

// What a member of the team has for its pieces' workspace.
std::int64_t workspace_of_member(Context& context, const GemmPieces& pieces) {
  constexpr std::int64_t kLine = 64;
  std::int64_t bytes = 0;
  for (const std::int64_t piece : pieces.kinds()) {
    bytes = std::max(
        bytes, static_cast<std::int64_t>(context.primitives().gemm(pieces[piece]).workspace_bytes));
  }
  return (bytes + kLine - 1) / kLine * kLine;
}

std::int64_t members_of(const Context& context, const GemmPieces& pieces) {
  return pieces.count() == 1 ? 1 : context.threads();
}

// Where element (row, column) of a stored matrix lies.
const void* element_at(
    const void* matrix, DType dtype, std::int64_t row, std::int64_t column, std::int64_t pitch) {
  return static_cast<const std::byte*>(matrix) +
         (row * pitch + column) * static_cast<std::int64_t>(size_bytes(dtype));
}

// On the calling thread alone. dnnl::primitive::execute() takes a map, made anew at each call.
void execute(const dnnl::primitive& primitive,
             const dnnl::stream& stream,
             std::span<const dnnl_exec_arg_t> arguments) {
  omp_set_num_threads(1);  // of this thread
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(
          primitive.get(), stream.get(), static_cast<int>(arguments.size()), arguments.data()),
      "a matrix product failed");
}

}  // namespace

std::size_t GemmHash::operator()(const Gemm& gemm) const {
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32U;
  };
  for (const std::int64_t value :
       {gemm.m, gemm.n, gemm.k, gemm.pitch_a, gemm.pitch_b, gemm.pitch_c}) {
    mix(value);
  }
  mix((gemm.transpose_a ? 1 : 0) + (gemm.transpose_b ? 2 : 0) + (gemm.accumulate ? 4 : 0) +
      8 * static_cast<std::int64_t>(gemm.input) + 64 * static_cast<std::int64_t>(gemm.output));
  return hash;
}

GemmArguments::GemmArguments(const dnnl::matmul::primitive_desc& description,
                             const dnnl::engine& engine)
    : memory_{dnnl::memory(description.src_desc(), engine, nullptr),
              dnnl::memory(description.weights_desc(), engine, nullptr),
              dnnl::memory(description.dst_desc(), engine, nullptr),
              description.scratchpad_desc().get_size() > 0
                  ? dnnl::memory(description.scratchpad_desc(), engine, nullptr)
                  : dnnl::memory()},
      list_{{{DNNL_ARG_SRC, memory_[0].get()},
             {DNNL_ARG_WEIGHTS, memory_[1].get()},
             {DNNL_ARG_DST, memory_[2].get()},
             {DNNL_ARG_SCRATCHPAD, memory_[3].get(true)}}} {}

void GemmArguments::set(const void* a, const void* b, void* c, void* workspace) {
  // oneDNN's handles are not const, but it only reads A and B.
  memory_[0].set_data_handle(const_cast<void*>(a));
  memory_[1].set_data_handle(const_cast<void*>(b));
  memory_[2].set_data_handle(c);
  if (memory_[3]) {
    memory_[3].set_data_handle(workspace);
  }
}

PrimitiveCache::PrimitiveCache(int threads)
    : engine_(dnnl::engine::kind::cpu, 0),
      stream_(engine_),
      threads_(static_cast<std::size_t>(threads)),
      multiplies_bf16_(has_bf16(engine_)) {}

GemmPrimitive PrimitiveCache::compile(const Gemm& key) const {
  const auto a = matrix(key.m, key.k, key.transpose_a, key.pitch_a, key.input);
  const auto b = matrix(key.k, key.n, key.transpose_b, key.pitch_b, key.input);
  const auto c = matrix(key.m, key.n, false, key.pitch_c, key.output);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops operations;
    operations.append_sum(1.0F);
    attributes.set_post_ops(operations);
  }
  omp_set_num_threads(1);  // of this thread: those that a primitive is made for
  try {
    const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine_);
    GemmPrimitive result;
    result.primitive = dnnl::matmul(description);
    result.arguments.reserve(threads_);
    for (std::size_t member = 0; member < threads_; ++member) {
      result.arguments.emplace_back(description, engine_);
    }
    result.workspace_bytes = description.scratchpad_desc().get_size();
    return result;
  } catch (const dnnl::error& error) {
    fail(ErrorCode::kUnsupported,
         "oneDNN cannot multiply {} matrices into {} on this processor ({})",
         name(key.input),
         name(key.output),
         error.message);
  }
}

GemmPrimitive& PrimitiveCache::gemm(const Gemm& key) {
  const auto found = gemms_.find(key);
  return found != gemms_.end() ? found->second : gemms_.emplace(key, compile(key)).first->second;
}

std::int64_t gemm_workspace_bytes(Context& context, const Gemm& gemm) {
  if (is_thin(gemm)) {
    return 0;
  }
  if (is_widened(context, gemm)) {
    return widened_gemm_workspace_bytes(context, gemm);
  }
  const GemmPieces pieces(gemm, context.threads());
  return members_of(context, pieces) * workspace_of_member(context, pieces);
}

void run_gemm(Context& context,
              const Gemm& gemm,
              const void* a,
              const void* b,
              void* c,
              std::span<std::byte> workspace) {
  if (is_thin(gemm)) {
    run_thin_gemm(context, gemm, a, b, c);
    return;
  }
  if (is_widened(context, gemm)) {
    run_widened_gemm(context, gemm, a, b, c, workspace);
    return;
  }
  const GemmPieces pieces(gemm, context.threads());
  const std::int64_t member_bytes = workspace_of_member(context, pieces);
  const std::int64_t bytes = members_of(context, pieces) * member_bytes;
  TESSERA_CHECK(static_cast<std::int64_t>(workspace.size()) >= bytes,
                "{} bytes of workspace, expected {}",
                workspace.size(),
                bytes);
  std::array<GemmPrimitive*, 4> kinds = {};
  std::ranges::transform(pieces.kinds(), kinds.begin(), [&](std::int64_t piece) {
    return &context.primitives().gemm(pieces[piece]);
  });
  context.team().run(pieces.count(), [&](std::int64_t piece, int member) {
    const std::size_t kind = (piece >= pieces.count() - pieces.across() ? 2 : 0) +
                             (piece % pieces.across() == pieces.across() - 1 ? 1 : 0);
    const std::int64_t row = pieces.row(piece);
    const std::int64_t column = pieces.column(piece);
    const void* const from_a = gemm.transpose_a ? element_at(a, gemm.input, 0, row, gemm.pitch_a)
                                                : element_at(a, gemm.input, row, 0, gemm.pitch_a);
    const void* const from_b = gemm.transpose_b
                                   ? element_at(b, gemm.input, column, 0, gemm.pitch_b)
                                   : element_at(b, gemm.input, 0, column, gemm.pitch_b);
    GemmArguments& arguments = kinds[kind]->arguments[static_cast<std::size_t>(member)];
    arguments.set(from_a,
                  from_b,
                  const_cast<void*>(element_at(c, gemm.output, row, column, gemm.pitch_c)),
                  workspace.data() + member * member_bytes);
    execute(kinds[kind]->primitive, context.primitives().stream(), arguments.list());
  });
}

}  // namespace tessera::cpu
