#include "tessera/ops/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/mesh/axes.h"
#include "tessera/ops/cross_entropy/cross_entropy_operands.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/in_order.h"

namespace tessera {
namespace {

// Without the accumulator.
int num_factors(const CrossEntropyAttrs& attrs) {
  const int of_codes = 2 + (attrs.gradients ? 2 : 0) + (attrs.makes_head_gradient() ? 2 : 0);
  return 4 + (attrs.codes ? of_codes : 0);
}

void require_codes(Types in, std::size_t index, std::span<const Dim> dims) {
  require_dtype(in, index, DType::kF8E4M3);
  TESSERA_REQUIRE(std::ranges::equal(in[index].dims, dims, {}, &Dim::bound, &Dim::bound),
                  ErrorCode::kInvalidArgument,
                  "operand {} is {}, expected codes of operand {}, transposed",
                  index,
                  to_string(in[index]),
                  index == 6 ? 1 : 0);
}

// What `codes` adds to the operands.
void require_inverses_and_transposed(const CrossEntropyAttrs& attrs, Types in) {
  const std::vector<Dim>& x = in[0].dims;
  const std::vector<Dim>& head = in[1].dims;
  const std::span<const Dim> rows(x.begin(), x.end() - 1);
  const std::span<const Dim> channels(x.end() - 1, x.end());
  require_inverse(in, 4, rows);
  require_inverse(in, 5, std::span(head).first(1));
  if (attrs.gradients) {
    require_codes(in, 6, std::array{head[1], head[0]});
    require_inverse(in, 7, channels);
  }
  if (attrs.makes_head_gradient()) {
    std::vector<Dim> transposed = {x.back()};
    transposed.insert(transposed.end(), rows.begin(), rows.end());
    require_codes(in, 8, transposed);
    require_inverse(in, 9, channels);
  }
}

// Behind the first four, as a rule writes them; `rows` are the factors of labels.
std::string factors_of_codes(const CrossEntropyAttrs& attrs, Types in, const std::string& rows) {
  const auto scales = [&](std::size_t index, const std::string& names) {
    return in[index].dims.empty() ? std::string("()") : format("({})", names);
  };
  std::string text = format(", {}, {}", scales(4, rows), scales(5, "v"));
  if (attrs.gradients) {
    text += format(", (z v), {}", scales(7, "z"));
  }
  if (attrs.makes_head_gradient()) {
    text += format(", (z {}), {}", rows, scales(9, "z"));
  }
  return text;
}

// Equal chunks of rows, one after the other, and bytes of all of them: of x, of the logits in
// memory, and of these as the factor of a product that they are then.
struct Chunks {
  std::int64_t rows = 0;  // of each
  std::int64_t times = 0;
  bool is_first = false;
  double x = 0.0;
  double logits = 0.0;
  double factor = 0.0;

  Chunks(const CrossEntropyAttrs& attrs,
         Types in,
         std::int64_t rows_of_each,
         std::int64_t count,
         bool first)
      : rows(rows_of_each), times(count), is_first(first) {
    const auto element = static_cast<double>(size_bytes(in[0].dtype));
    const auto all_rows = static_cast<double>(rows * times);
    const double all_logits = all_rows * static_cast<double>(in[1].dims[0].bound);
    x = all_rows * static_cast<double>(in[1].dims[1].bound) * element;
    logits = all_logits * static_cast<double>(size_bytes(attrs.logits));
    factor = all_logits * element;
  }

  // How often what all chunks share is read or written beyond the once of the op.
  double again() const { return static_cast<double>(is_first ? times - 1 : times); }
};

Work logits_work(const CrossEntropyAttrs& attrs, Types in, const Chunks& chunks) {
  const auto head = static_cast<double>(in[1].num_bytes());
  Work product = product_work({.m = chunks.rows,
                               .n = in[1].dims[0].bound,
                               .k = in[1].dims[1].bound,
                               .transpose_b = true,
                               .input = in[0].dtype,
                               .output = attrs.logits},
                              chunks.times);
  product.bytes_read = chunks.x + (chunks.is_first ? head : 0.0);
  product.bytes_again = chunks.logits + chunks.again() * head;
  return product;
}

// What a pass over the logits takes of each, of two: the sum of exponentials, and the rest.
constexpr double kSoftmaxFlop = 3.0;

double flop_of_pass(Types in, const Chunks& chunks) {
  return kSoftmaxFlop * static_cast<double>(chunks.rows * chunks.times) *
         static_cast<double>(in[1].dims[0].bound);
}

// Makes the sums of a chunk's rows of which each rank has a part: a kernel sums what lies here, the
// largest logits go over the wire, a kernel brings sums to the shift of all, and they go over it.
void add_joined_sums(const CrossEntropyAttrs& attrs, Types in, const Chunks& chunks, Works& works) {
  constexpr double kSum = 20.0;  // bytes of a row: what is kept of it, and what moves
  const double sums = kSum * static_cast<double>(chunks.rows);
  works.push_back({.dtype = attrs.logits,
                   .elementwise_flop = flop_of_pass(in, chunks),
                   .bytes_again = chunks.logits + sums});
  works.push_back({.kind = WorkKind::kWire});
  works.push_back({.bytes_again = 2.0 * sums});
  works.push_back({.kind = WorkKind::kWire});
  works.push_back({.bytes_again = sums});
}

// Softmax, loss, and the logits' gradient, which is written as the factor of products. Logits are
// read for the sum of exponentials, unless these are known, and once more for the gradient.
Work softmax_work(const CrossEntropyAttrs& attrs, Types in, const Chunks& chunks) {
  const double passes = attrs.axes.empty() ? 2.0 : 1.0;
  Work softmax{.times = chunks.times,
               .dtype = attrs.logits,
               .elementwise_flop = passes * flop_of_pass(in, chunks),
               .bytes_again = (passes - 1.0) * chunks.logits};
  if (attrs.gradients) {
    softmax.bytes_again += chunks.logits + chunks.factor;
  }
  if (attrs.gradients && attrs.codes) {
    // In `logits` first, from which the codes are made, those that lie transposed, too.
    softmax.bytes_again += 2.0 * chunks.logits + (attrs.head_gradient ? chunks.factor : 0.0);
  }
  if (chunks.is_first) {
    count_bytes(softmax, in.subspan(2, 2), {});
    softmax.bytes_written += attrs.loss ? sizeof(float) : 0.0;
  }
  for (std::size_t i = 4; chunks.is_first && i < static_cast<std::size_t>(num_factors(attrs));
       ++i) {
    softmax.bytes_read += i == 6 || i == 8 ? 0.0 : static_cast<double>(in[i].num_bytes());
  }
  return softmax;
}

Work hidden_gradient_work(const CrossEntropyAttrs& attrs, Types in, const Chunks& chunks) {
  const auto head = static_cast<double>(in[1].num_bytes());
  const DType output = attrs.codes ? attrs.dtype : in[0].dtype;
  Work product = product_work({.m = chunks.rows,
                               .n = in[1].dims[1].bound,
                               .k = in[1].dims[0].bound,
                               .transpose_b = attrs.codes,
                               .input = in[0].dtype,
                               .output = output},
                              chunks.times);
  const bool reads_operand = attrs.codes && chunks.is_first;  // the transposed head
  product.bytes_read = reads_operand ? head : 0.0;
  product.bytes_written = chunks.x / static_cast<double>(size_bytes(in[0].dtype)) *
                          static_cast<double>(size_bytes(output));
  product.bytes_again =
      chunks.factor + head * (static_cast<double>(chunks.times) - (reads_operand ? 1.0 : 0.0));
  return product;
}

// The sum over all chunks is read and written for each.
Work head_gradient_work(const CrossEntropyAttrs& attrs, Types in, const Chunks& chunks) {
  Work product = product_work({.m = in[1].dims[0].bound,
                               .n = in[1].dims[1].bound,
                               .k = chunks.rows,
                               .transpose_a = !attrs.codes,
                               .transpose_b = attrs.codes,
                               .input = in[0].dtype},
                              chunks.times);
  const auto sum = static_cast<double>(with_dtype(in[1], DType::kF32).num_bytes());
  product.bytes_read =
      (attrs.codes ? chunks.x : 0.0) + (chunks.is_first && attrs.accumulate ? sum : 0.0);
  product.bytes_written = chunks.is_first ? sum : 0.0;
  product.bytes_again = chunks.factor + (attrs.codes ? 0.0 : chunks.x) + 2.0 * chunks.again() * sum;
  return product;
}

}  // namespace

OpInfo info(const CrossEntropyAttrs& attrs) {
  OpInfo result{.name = "cross_entropy",
                .num_operands = num_factors(attrs) + (attrs.accumulate ? 1 : 0),
                .num_results = (attrs.loss ? 1 : 0) + (attrs.gradients ? 1 : 0) +
                               (attrs.makes_head_gradient() ? 1 : 0)};
  if (attrs.accumulate) {
    result.aliases = {
        {.result = result.num_results - 1, .operand = num_factors(attrs), .required = true}};
  }
  return result;
}

TensorTypes infer(const CrossEntropyAttrs& attrs, Types in) {
  if (attrs.codes) {
    require_dtype(in, 0, DType::kF8E4M3);
  } else {
    require_float(in, 0);
  }
  require_dims(in, 1, 2);
  require_dtype(in, 1, in[0].dtype);
  require_dtype(in, 2, DType::kI32);
  require_dims(in, 3, 0);
  TESSERA_REQUIRE(in[0].num_dims() == in[2].num_dims() + 1 &&
                      in[0].dims.back().bound == in[1].dims[1].bound &&
                      in[0].num_elements() == in[2].num_elements() * in[1].dims[1].bound,
                  ErrorCode::kInvalidArgument,
                  "hidden states {}, head {} and labels {} do not fit",
                  to_string(in[0]),
                  to_string(in[1]),
                  to_string(in[2]));
  TESSERA_REQUIRE(attrs.chunk > 0 && (attrs.loss || attrs.gradients) &&
                      (attrs.makes_head_gradient() || !attrs.accumulate),
                  ErrorCode::kInvalidArgument,
                  "cross_entropy needs a result and a positive chunk, found chunk {}",
                  attrs.chunk);
  TESSERA_REQUIRE(attrs.softcap >= 0.0 && std::isfinite(attrs.softcap),
                  ErrorCode::kInvalidArgument,
                  "a softcap of {}, expected a positive number, or 0 for none",
                  attrs.softcap);
  require_vocab_shard(attrs.axes, attrs.whole_vocab, in[1].dims[0].bound);
  TESSERA_REQUIRE(attrs.vocab >= 0 && attrs.vocab <= (attrs.axes.empty() ? in[1].dims[0].bound : 0),
                  ErrorCode::kInvalidArgument,
                  "{} entries of the head {} count",
                  attrs.vocab,
                  to_string(in[1]));
  if (attrs.codes) {
    require_inverses_and_transposed(attrs, in);
    TESSERA_REQUIRE(attrs.dtype == DType::kF32 || attrs.dtype == DType::kBF16,
                    ErrorCode::kInvalidArgument,
                    "found dtype {}, expected f32 or bf16",
                    name(attrs.dtype));
  }
  TESSERA_REQUIRE(
      attrs.logits == DType::kF32 ||
          (attrs.logits == DType::kBF16 && (attrs.codes || in[0].dtype == DType::kBF16)),
      ErrorCode::kInvalidArgument,
      "found logits in {} of hidden states {}, expected f32, or bf16 where these are no wider",
      name(attrs.logits),
      to_string(in[0]));
  if (attrs.accumulate) {
    require_same_shape(in, static_cast<std::size_t>(num_factors(attrs)), 1);
    require_dtype(in, static_cast<std::size_t>(num_factors(attrs)), DType::kF32);
  }
  TensorTypes results;
  if (attrs.loss) {
    results.push_back(scalar_type(DType::kF32));
  }
  if (attrs.gradients) {
    results.push_back(attrs.codes ? with_dtype(in[0], attrs.dtype) : in[0]);
  }
  if (attrs.makes_head_gradient()) {
    results.push_back(with_dtype(in[1], DType::kF32));
  }
  return results;
}

FactorRule factors(const CrossEntropyAttrs& attrs, Types in) {
  const std::string rows = factor_names(in[2].num_dims());
  std::string results = attrs.loss ? "()" : "";
  if (attrs.gradients) {
    results += format("{}({} z)", attrs.loss ? ", " : "", rows);
  }
  if (attrs.makes_head_gradient()) {
    results += ", (v z)";
  }
  const bool sums_rows = !rows.empty() && (attrs.loss || attrs.makes_head_gradient());
  return parse_factor_rule(
      format("({0} z), (v z), ({0}), (){1}{2} -> {3} | reduce {4} | whole z | rewrite v",
             rows,
             attrs.codes ? factors_of_codes(attrs, in, rows) : "",
             attrs.accumulate ? ", (v z)" : "",
             results,
             factor_list(sums_rows ? rows + " v" : "v")));
}

Collectives collectives(const CrossEntropyAttrs& attrs, Types in) {
  Collectives uses;
  if (attrs.axes.empty()) {
    return uses;
  }
  constexpr std::int64_t kFloat = sizeof(float);
  const AxisSizes& axes = attrs.axes;
  const std::int64_t rows = in[2].num_elements();
  const std::int64_t chunk = std::min(attrs.chunk, rows);
  for (std::int64_t row = 0; row < rows; row += chunk) {
    const std::int64_t count = std::min(chunk, rows - row);
    for (const PartialOp fold : {PartialOp::kMax, PartialOp::kSum}) {
      uses.push_back({.axes = axes,
                      .kind = CollectiveKind::kAllReduce,
                      .dtype = DType::kF32,
                      .fold = fold,
                      .bytes = count * kFloat,
                      .sent = all_reduce_traffic(axes, TrafficClass::kTensor, count, kFloat)});
    }
  }
  return uses;
}

OpRef rewritten(const CrossEntropyAttrs& attrs, Types whole, const AxisSizes& axes) {
  CrossEntropyAttrs local = attrs;
  local.axes = axes;
  local.whole_vocab = attrs.vocab > 0 ? attrs.vocab : whole[1].dims[0].bound;
  local.vocab = 0;
  return make_op(local);
}

// Of each chunk the logits go through memory, and the head is read. Chunks that are equal stand
// together, a shorter last one after them, unless ranks join the sums of each.
Works work(const CrossEntropyAttrs& attrs, Types in) {
  const std::int64_t rows = in[2].num_elements();
  const std::int64_t chunk = std::min(attrs.chunk, rows);
  const bool is_cut = !attrs.axes.empty();
  const std::int64_t together = is_cut ? 1 : rows / chunk;
  Works works;
  for (std::int64_t row = 0; row < rows;) {
    const bool is_whole = rows - row >= chunk;
    const Chunks chunks(
        attrs, in, is_whole ? chunk : rows - row, is_whole ? together : 1, row == 0);
    works.push_back(logits_work(attrs, in, chunks));
    if (is_cut) {
      add_joined_sums(attrs, in, chunks, works);
    }
    works.push_back(softmax_work(attrs, in, chunks));
    if (attrs.gradients) {
      works.push_back(hidden_gradient_work(attrs, in, chunks));
    }
    if (attrs.makes_head_gradient()) {
      works.push_back(head_gradient_work(attrs, in, chunks));
    }
    row += chunks.rows * chunks.times;
  }
  return works;
}

// The gradients come with the logits, for the price of the seed: no gradient of the loss value is
// read, since the loss is where differentiation starts.
void backward(const CrossEntropyAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.gradients && attrs.axes.empty() && !attrs.codes,
                "the fused form, the cut one and that of codes are made after differentiation");
  const bool wants_hidden = grad.start(0);
  const bool wants_head = grad.start(1);
  if (!wants_head && !wants_hidden) {
    return;
  }
  const Value x = grad.operand(0);
  grad.start(0);
  const auto gradients = x.builder->emit(make_op(CrossEntropyAttrs{.loss = false,
                                                                   .gradients = true,
                                                                   .head_gradient = wants_head,
                                                                   .chunk = attrs.chunk,
                                                                   .vocab = attrs.vocab,
                                                                   .logits = attrs.logits,
                                                                   .softcap = attrs.softcap}),
                                         {x, grad.operand(1), grad.operand(2), grad.operand(3)});
  grad.set(0, gradients[0]);
  if (wants_head) {
    grad.set(1, gradients[1]);
  }
}

void visit(CrossEntropyAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("loss", attrs.loss);
  visitor.field("gradients", attrs.gradients);
  visitor.field("head_gradient", attrs.head_gradient);
  visitor.field("accumulate", attrs.accumulate);
  visitor.field("chunk", attrs.chunk);
  visitor.field("vocab", attrs.vocab);
  visitor.text_field("axes", attrs.axes);
  visitor.field("whole_vocab", attrs.whole_vocab);
  visitor.field("logits", attrs.logits);
  visitor.field("codes", attrs.codes);
  visitor.field("dtype", attrs.dtype);
  visitor.field("power_of_two", attrs.power_of_two);
  visitor.field("softcap", attrs.softcap);
}

Value cross_entropy(const Value& x,
                    const Value& head,
                    const Value& labels,
                    const Value& seed,
                    std::int64_t vocab,
                    double softcap) {
  return x.builder->emit(make_op(CrossEntropyAttrs{.vocab = vocab, .softcap = softcap}),
                         {x, head, labels, seed})[0];
}

CrossEntropyOperands by_name(const CrossEntropyAttrs& attrs, const Views& views) {
  const bool has_transposed_head = attrs.codes && attrs.gradients;
  const bool has_transposed_x = attrs.codes && attrs.makes_head_gradient();
  InOrder in(views.in);
  InOrder out(views.out);
  return {.x = in.next(),
          .head = in.next(),
          .labels = in.next(),
          .seed = in.next(),
          .inverse_x = in.next_if(attrs.codes),
          .inverse_head = in.next_if(attrs.codes),
          .head_transposed = in.next_if(has_transposed_head),
          .inverse_of_head_transposed = in.next_if(has_transposed_head),
          .x_transposed = in.next_if(has_transposed_x),
          .inverse_of_x_transposed = in.next_if(has_transposed_x),
          .accumulator = in.next_if(attrs.accumulate),
          .loss = out.next_if(attrs.loss),
          .dx = out.next_if(attrs.gradients),
          .dhead = out.next_if(attrs.makes_head_gradient())};
}

}  // namespace tessera
