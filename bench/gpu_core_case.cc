#include "bench/gpu_core_case.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/chunk_loss.h"

namespace tessera {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

Tensor scalar(double value) {
  return {.dtype = kF32, .sizes = {}, .fill = Fill::kValue, .value = value};
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
  // Rows of one document each, which a library's kernels take, and rows whose documents are found
  // when the step runs.
  for (const bool whole_rows : {true, false}) {
    const std::string of = whole_rows ? "" : "_documents";
    Case forward = {"attention" + of,
                    make_op(AttentionAttrs{.scale = scale, .whole_rows = whole_rows}),
                    {q, k, k, positions, positions, documents, documents},
                    {q, lse}};
    forward.flop = flop;
    forward.bytes = 0;
    Case backward = {"attention_backward" + of,
                     make_op(AttentionBackwardAttrs{.scale = scale, .whole_rows = whole_rows}),
                     {q, q, k, k, q, lse, positions, positions, documents, documents},
                     {q, k, k}};
    backward.flop = 2.5 * flop;
    backward.bytes = 0;
    cases.push_back(forward);
    cases.push_back(backward);
    if (whole_rows) {
      backward.name = "attention_backward_any_order";
      backward.op =
          make_op(AttentionBackwardAttrs{.scale = scale, .whole_rows = true, .any_order = true});
      cases.push_back(backward);
    }
  }
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
  Tensor each_column = each_row;
  each_column.sizes = {s.ffn};
  cases.push_back({"amax_columns", make_op(AmaxAttrs{.leading = true}), {wide}, {each_column}});
  cases.push_back({"quantize_float8",
                   make_op(QuantizeFloat8Attrs{.dims = 2}),
                   {wide, scalar(1)},
                   {codes, scalar(0)}});
  cases.push_back({"quantize_float8_both",
                   make_op(QuantizeFloat8Attrs{.dims = 2, .transposed = true, .rows = 1}),
                   {wide, scalar(1)},
                   {codes, transposed, scalar(0)}});
  cases.push_back({"quantize_float8_rows",
                   make_op(QuantizeFloat8Attrs{.power_of_two = true, .amax = true}),
                   {wide},
                   {codes, each_row}});
  const Float8Results of_rows = {.codes = true};
  cases.push_back({"swiglu_codes",
                   make_op(SwigluAttrs{.float8 = of_rows}),
                   {wide, wide},
                   {wide, codes, each_row}});
  cases.push_back({"swiglu_backward_codes",
                   make_op(SwigluBackwardAttrs{.float8 = of_rows}),
                   {wide, wide, wide},
                   {wide, wide, codes, each_row, codes, each_row}});
  const Tensor x{.dtype = kBF16, .sizes = {s.rows, s.width}};
  const Tensor gain{.dtype = kBF16, .sizes = {s.width}};
  const Tensor codes_of_x{.dtype = kCode, .sizes = {s.rows, s.width}};
  cases.push_back({"rms_norm_codes",
                   make_op(RmsNormAttrs{.residual = true, .float8 = of_rows}),
                   {x, x, gain},
                   {x, each_row, x, codes_of_x, each_row}});
  cases.push_back(
      {"rms_norm_backward_codes",
       make_op(RmsNormBackwardAttrs{.residual = true, .weight_gradient = true, .float8 = of_rows}),
       {x, x, gain, each_row, x},
       {x, {.dtype = kF32, .sizes = {s.width}}, codes_of_x, each_row}});
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

}  // namespace

std::int64_t loss_chunk(const Shape& s) {
  return std::min(rows_of_logits(s.vocab, kBF16, kDeviceLogitsBytes), s.rows);
}

double tensor_bytes(const std::vector<Tensor>& tensors) {
  double bytes = 0;
  for (const Tensor& each : tensors) {
    bytes += static_cast<double>(each.bytes());
  }
  return bytes;
}

// Logits are read in bf16 for the softmax's sums and for the gradient, which is written so, too.
double softmax_bytes(const Shape& s) {
  return static_cast<double>(s.rows) * static_cast<double>(s.vocab) * (2 + 2 + 2);
}

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

}  // namespace tessera
